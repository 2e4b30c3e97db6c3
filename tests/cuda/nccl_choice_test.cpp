#include <doctest/doctest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/agreement.h"
#include "comm/transports/between_gpus.h"
#include "tests/cuda/nccl_world.h"
#include "tests/cuda/support.h"
#include "tests/support/errors.h"
#include "tests/support/stderr_lines.h"
#include "tests/support/transport_of.h"

// Which transport the trainer takes between GPUs.
namespace starling::tests {
namespace {

using test::contains;
using test::stderr_lines;

/// What the ranks of a world get, by name; or the error, on every rank.
std::vector<std::string> chosen(const std::string& wanted, const FakeNcclOptions& options,
                                int without = -1) {
  constexpr int kRanks = 2;
  std::vector<std::string> names(kRanks);
  NcclWorld world(kRanks, {.nccl = options});
  world.run_ranks([&](int rank) {
    cuda::CudaBackend backend(0, false, false, true);
    std::string& name = names[static_cast<std::size_t>(rank)];
    try {
      const auto open = [&](std::string& why) -> std::unique_ptr<Nccl> {
        if (rank != without) return world.fake.open(rank);
        why = "this build has none";
        return nullptr;
      };
      const auto transport =
          transport_of(wanted).make(world.control(rank), {backend, 20.0, 3 + rank, false, open});
      name = transport->name();
      if (name.find("NCCL") != std::string::npos) CHECK(world.fake.max_ctas(rank) == 3 + rank);
      // It works.
      const Tensor numbers(backend, Shape{8}, DType::kFloat32);
      backend.fill(numbers, 1.0 + rank);
      transport->wait(transport->start_sum(numbers, numbers, {0, 0, 0}));
      CHECK(host_copy(numbers) == std::vector<float>(8, 3.0F));
    } catch (const AgreedError& error) {
      name = error.what();
      CHECK(error.code() == ExitCode::kUsage);
    }
  });
  CHECK(names[0] == names[1]);
  return names;
}

}  // namespace

TEST_CASE(
    "nccl/choice: auto takes NCCL where all ranks have it and a GPU of their own, else host "
    "memory") {
  CHECK(contains(chosen("auto", {})[0], "NCCL"));
  CHECK(contains(chosen("nccl", {})[0], "NCCL"));
  CHECK(contains(chosen("staged", {})[0], "through host memory"));
  CHECK(contains(chosen("mpi", {})[0], "through host memory"));
  CHECK(contains(chosen("auto", {}, 1)[0], "through host memory"));
  CHECK(contains(chosen("auto", {.devices = {"0000:01:00.0", "0000:01:00.0"}})[0],
                 "through host memory"));
  CHECK(contains(chosen("auto", {.refuse_init = 1})[0], "through host memory"));
}

TEST_CASE(
    "nccl/choice: ranks that share a GPU and read each other's memory there are told what that "
    "costs") {
  const auto lines = [](const char* wanted) { return stderr_lines([&] { chosen(wanted, {}); }); };
  const std::vector<std::string> by_peers = lines("auto");
  REQUIRE(by_peers.size() == 1);
  CHECK(contains(by_peers[0],
                 "ranks 0 and 1 share a GPU, which works for one at a time, for waiting too"));
  CHECK(lines("nccl").empty());
}

TEST_CASE("nccl/choice: nccl where it cannot be is an error with the reason") {
  CHECK(contains(chosen("nccl", {}, 1)[0],
                 "sync.transport is nccl, but rank 1 has no NCCL: this build has none"));
  const std::string shared = chosen("nccl", {.devices = {"0000:01:00.0", "0000:01:00.0"}})[0];
  CHECK(contains(shared, "ranks 0 and 1 share the GPU 0000:01:00.0 of host "));
  CHECK(contains(shared, "NCCL_HOSTID"));
  CHECK(contains(chosen("nccl", {.refuse_init = 0})[0], "ncclCommInitRankConfig: invalid usage"));
}

TEST_CASE("nccl/choice: GPUs are told apart by what NCCL takes for a host") {
  const NcclAnswer a{"", "0000:01:00.0", "node1 x", "node1"},
      b{"", "0000:01:00.0", "node2 y", "node2"}, c{"", "0000:02:00.0", "node1 x", "node1"};
  CHECK(why_not_nccl({a, b, c}).empty());
  CHECK(contains(why_not_nccl({a, b, c, b}),
                 "ranks 1 and 3 share the GPU 0000:01:00.0 of host node2"));
  NcclAnswer own = a;
  own.nccl_host = "NCCL_HOSTID one";
  CHECK(why_not_nccl({a, own}).empty());
  CHECK(contains(why_not_nccl({a, {"gone", "", "", ""}, a}), "rank 1 has no NCCL: gone"));
}

}  // namespace starling::tests
