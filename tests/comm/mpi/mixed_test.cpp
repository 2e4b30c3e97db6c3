#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../support.h"
#include "../transport_contract.h"
#include "comm/shared/direct_transport.h"
#include "comm/shared/memory_sharing.h"
#include "kernels/open_backend.h"
#include "world.h"

// Ranks of one machine that take themselves for ranks of several hosts: within a host they read
// each other's memory, between hosts MPI's messages go. Every algorithm has the bits of the
// transport in memory then; but for `async`, which has no two runs alike.

using namespace starling;
using test::session;

namespace {

/// Memory between processes, of those alone that have the same host number.
class Host final : public MemorySharing {
 public:
  explicit Host(int number) : number_(number), inner_(make_process_sharing(20.0)) {}
  std::string host() const override { return inner_->host() + " " + std::to_string(number_); }
  SharedBlocks share(World& world, const std::vector<int>& local, std::size_t bytes,
                     Kind kind) override {
    return inner_->share(world, local, bytes, kind);
  }

 private:
  int number_;
  std::unique_ptr<MemorySharing> inner_;
};

}  // namespace

TEST_CASE(
    "comm/mpi: with memory within a host and messages between hosts every algorithm has the bits "
    "of the fake transport") {
  register_builtin_topologies();
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const int ranks = session().size();
  const auto own = static_cast<std::size_t>(session().rank());
  // Hosts of neighbours, hosts whose ranks lie apart, and one host. Two ranks may be two hosts,
  // which nobody shares with.
  std::vector<std::vector<int>> layouts{{0, 1, 0, 1}, {0, 0, 0, 0}};
  if (ranks > 2) layouts.push_back({0, 0, 1, 1});
  std::size_t turn = 0;
  for (const auto& [job, reads, nodes] : test::contract_jobs(ranks)) {
    CAPTURE(job.algorithm.dump());
    CAPTURE(job.topology.dump());
    CAPTURE(job.exchange);
    const std::vector<double> expected = test::run_fake(job, ranks)[own];
    ++turn;
    for (std::size_t k = 0; k < layouts.size(); ++k) {
      // On three ranks, as for every change, a job meets one layout; on 2 and 4, at night, all
      if (ranks == 3 && turn % layouts.size() != k) continue;
      const std::vector<int>& hosts = layouts[k];
      REQUIRE(static_cast<std::size_t>(ranks) <= hosts.size());
      int mates = -1;
      for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
        mates += hosts[r] == hosts[own];
      if (nodes && mates + 1 == ranks) continue;
      const auto t =
          make_direct_transport(session().make_transport(20.0), std::make_unique<Host>(hosts[own]),
                                {.timeout_seconds = 20.0});
      std::string way;
      CHECK(test::run_job(job, *t, *backend, &way) == expected);
      CHECK(way == (!reads || mates == 0 ? "mpi" : mates + 1 == ranks ? "direct" : "direct+mpi"));
    }
  }
}
