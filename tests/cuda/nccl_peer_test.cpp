#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/nccl_world.h"
#include "tests/cuda/peer_job.h"
#include "tests/fakes/transport/thread_sharing.h"

// Peer memory over NCCL: the ranks of a host read each other, the others and all sums go by NCCL.
namespace starling::tests {
namespace {

using Numbers = std::vector<std::vector<double>>;

Numbers over_nccl(int ranks, int ranks_per_host, bool peers, const PeerJobSettings& settings) {
  Numbers numbers(static_cast<std::size_t>(ranks));
  PeerJob::register_once();
  NcclWorld world(ranks);
  world.run_ranks([&](int rank) {
    cuda::CudaBackend backend(0, false, false, true);
    std::unique_ptr<Transport> transport = world.open(rank, backend);
    if (peers) {
      std::string refusal;
      auto sharing = make_thread_sharing("host " + std::to_string(rank / ranks_per_host), false);
      auto over = make_peer_transport(std::move(transport), backend, std::move(sharing), {20.0}, refusal);
      REQUIRE(over != nullptr);
      transport = std::move(over);
    }
    PeerJob job(backend, *transport, settings);
    job.run();
    numbers[static_cast<std::size_t>(rank)] = job.numbers();
  });
  return numbers;
}

}  // namespace

TEST_CASE("nccl/peers: pairs within hosts by peer memory, between hosts and for sums by NCCL, give the bits of NCCL alone") {
  for (const char* type : {"ring", "static-exp", "complete", "base-2", "directed-exp"}) {
    CAPTURE(std::string(type));
    PeerJobSettings settings;
    settings.topology = {{"type", type}};
    settings.steps = 7;
    const Numbers wanted = over_nccl(4, 4, false, settings);
    CHECK(over_nccl(4, 2, true, settings) == wanted);
    CHECK(over_nccl(4, 4, true, settings) == wanted);
    settings.start_at_begin = true;
    CHECK(over_nccl(4, 2, true, settings) == wanted);
  }
}

TEST_CASE("nccl/peers: graphs that hold peers' reads and NCCL's calls give the bits of eager steps") {
  for (const auto& [type, per_host] : {std::pair{"ring", 2}, {"static-exp", 2}, {"complete", 4}}) {
    CAPTURE(std::string(type));
    PeerJobSettings settings;
    settings.topology = {{"type", type}};
    settings.steps = 13;
    const Numbers eager = over_nccl(4, per_host, true, settings);
    settings.graphs = true;
    CHECK(over_nccl(4, per_host, true, settings) == eager);
  }
}

}  // namespace starling::tests
