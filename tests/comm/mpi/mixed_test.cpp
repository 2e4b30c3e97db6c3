#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../support.h"
#include "comm/shared/direct_transport.h"
#include "comm/shared/memory_sharing.h"
#include "kernels/open_backend.h"
#include "world.h"

// Ranks of one machine that take themselves for ranks of several hosts: within a host they read
// each other's memory, between hosts MPI's messages go. Every algorithm has the bits of the
// transport in memory then; but for `async`, which has no two runs alike.

using namespace starling;
using nlohmann::json;
using test::Job;
using test::session;

namespace {

/// Memory between processes, of those alone that have the same host number.
class Host final : public MemorySharing {
 public:
  explicit Host(int number) : number_(number), inner_(make_process_sharing(20.0)) {}
  std::string host() const override { return inner_->host() + " " + std::to_string(number_); }
  SharedBlocks share(World& world, const std::vector<int>& local, std::size_t bytes) override {
    return inner_->share(world, local, bytes);
  }

 private:
  int number_;
  std::unique_ptr<MemorySharing> inner_;
};

struct Mixed {
  json algorithm;
  std::string topology = "static-ring";
  json optimizer = {{"type", "sgd"}, {"momentum", 0.8}, {"weight_decay", 0.05}};
  /// Its mixer reads parameters where they lie: not those of blocking and of encoded exchanges, and
  /// not sums
  bool reads = false;
  std::string exchange = "fp32";
};

std::vector<Mixed> all_families() {
  const json sgd = {{"type", "sgd"}, {"momentum", 0.8}, {"weight_decay", 0.05}},
             adamw = {{"type", "adamw"}, {"eps", 1e-3}};
  return {
      {{{"type", "gossip"}}, "static-ring", adamw, true},
      {{{"type", "gossip"}, {"mix_states", 2}, {"global_every", 3}}, "base-2", adamw, true},
      {{{"type", "gossip"}, {"order", "atc"}}, "complete", adamw},
      {{{"type", "gossip"}, {"global_above", 0.02}, {"check_every", 2}}, "base-2", sgd, true},
      {{{"type", "gossip"}, {"error_feedback", true}}, "static-ring", sgd, false, "int8"},
      {{{"type", "gossip"}}, "random-matching", adamw, true},
      {{{"type", "gossip"}}, "static-ring", sgd, false, "bf16"},
      {{{"type", "gossip"}}, "complete", adamw, false, "bf16"},
      {{{"type", "gossip"}}, "base-2", adamw, false, "bf16"},
      {{{"type", "qgm"}}, "base-2", sgd},
      {{{"type", "qgm"}, {"order", "awc"}}, "base-2", sgd, true},
      {{{"type", "decentlam"}}, "static-ring", sgd},
      {{{"type", "gradient_tracking"}}, "base-2", adamw, true},
      {{{"type", "momentum_tracking"}}, "static-ring", sgd, true},
      {{{"type", "exact_diffusion"}}, "static-ring", adamw},
      {{{"type", "push_sum"}}, "directed-exp", adamw},
      {{{"type", "allreduce"}}},
      {{{"type", "allreduce"}, {"scatter_gather", true}}},
      {{{"type", "allreduce"}, {"hierarchical", true}, {"ranks_per_node", 2}}},
      {{{"type", "local_sgd"}, {"period", 3}, {"start", 2}, {"states", "average"}}},
      {{{"type", "local_sgd"}, {"period", 4}, {"gradients", "node"}, {"ranks_per_node", 2}}},
      {{{"type", "local_sgd"}, {"period", 2}, {"average", "topology"}}, "base-2", sgd},
      {{{"type", "slowmo"}, {"period", 3}}},
      {{{"type", "slowmo"}, {"period", 4}, {"inner", "gossip"}}, "static-ring", sgd, true},
      {{{"type", "diloco"}, {"period", 4}, {"fragments", 2}, {"delay", 1}}},
      {{{"type", "choco"}, {"block", 32}}},
      {{{"type", "low_precision"}, {"interval", 2}}},
      {{{"type", "bytegrad"}}},
      {{{"type", "qadam"}, {"warmup", 3}}, "complete", adamw},
  };
}

}  // namespace

TEST_CASE(
    "comm/mpi: with memory within a host and messages between hosts every algorithm has the bits "
    "of the fake transport") {
  register_builtin_topologies();
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const int ranks = session().size();
  const auto own = static_cast<std::size_t>(session().rank());
  // Hosts of neighbours, and hosts whose ranks lie apart. Two ranks are two hosts, which nobody
  // shares with.
  std::vector<std::vector<int>> layouts{{0, 1, 0, 1}};
  if (ranks > 2) layouts.push_back({0, 0, 1, 1});
  for (const Mixed& family : all_families()) {
    Job job;
    job.algorithm = family.algorithm;
    job.topology = {{"type", family.topology}};
    job.optimizer = family.optimizer;
    job.exchange = family.exchange;
    if (job.algorithm.contains("ranks_per_node") && ranks % 2 != 0)
      job.algorithm["ranks_per_node"] = ranks;
    job.steps = 9;
    job.finish_every = 4;
    CAPTURE(job.algorithm.dump());
    CAPTURE(job.exchange);
    const std::vector<double> expected = test::run_fake(job, ranks)[own];
    for (const std::vector<int>& hosts : layouts) {
      REQUIRE(static_cast<std::size_t>(ranks) <= hosts.size());
      int mates = -1;
      for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
        mates += hosts[r] == hosts[own];
      const auto t =
          make_direct_transport(session().make_transport(20.0), std::make_unique<Host>(hosts[own]),
                                {.timeout_seconds = 20.0});
      std::string way;
      CHECK(test::run_job(job, *t, *backend, &way) == expected);
      CHECK(way == (family.reads && mates > 0 ? "direct+mpi" : "mpi"));
    }
  }
}
