#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/nccl/transport.h"
#include "comm/transport.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda/fake_ranks.h"
#include "tests/fakes/nccl/nccl_fake.h"
#include "tests/fakes/transport/fake_transport.h"

// The world that all tests of the NCCL transport (nccl_*_test.cpp) begin with. They are about the
// transport and what uses it; the NCCL beneath is the one of tests/fakes/nccl.
namespace starling::tests {

/// A topology whose rounds' groups overlap, so that ranks, of five, are in several communicators.
inline nlohmann::json groups_of_three() {
  return nlohmann::json::parse(R"({"type": "custom", "rounds": [
    [{"ranks": [0, 1, 2], "weight": 0.5}, {"ranks": [3, 4], "weight": 0.25}],
    [{"ranks": [1, 3], "weight": 0.5}, {"ranks": [0, 2, 4], "weight": 0.5}]]})");
}

/// Ranks as threads, each with a GPU of the shim's, that exchange through the NCCL transport and a
/// fake of NCCL.
class NcclWorld {
 public:
  struct Options {
    FakeNcclOptions nccl;
    double timeout_seconds = 20.0;
    double watch_seconds = 0.01;
  };
  explicit NcclWorld(int ranks) : NcclWorld(ranks, Options{}) {}
  NcclWorld(int ranks, const Options& options)
      : fake(ranks, options.nccl), options_(options), control_(ranks) {}

  void run(const std::function<void(Transport&, cuda::CudaBackend&)>& body) {
    run_ranks([&](int rank) {
      cuda::CudaBackend backend(0, false, false, true);
      const auto transport = open(rank, backend);
      body(*transport, backend);
    });
  }
  /// Every rank's end, made by the body itself.
  void run_ranks(const std::function<void(int rank)>& body) {
    control_.run([&](Transport& end) { body(end.rank()); });
  }
  std::unique_ptr<Transport> open(int rank, cuda::CudaBackend& backend) {
    return open(control(rank), backend);
  }
  std::unique_ptr<Transport> open(std::unique_ptr<Transport>&& end, cuda::CudaBackend& backend) {
    const int rank = end->rank();
    return make_nccl_transport(std::move(end), backend, fake.open(rank),
                               {options_.timeout_seconds, 0, options_.watch_seconds});
  }
  std::unique_ptr<Transport> control(int rank) { return control_.transport(rank); }

  FakeNccl fake;

 private:
  Options options_;
  FakeWorld control_;
};

/// Makes NCCL transports, for ranks whose calls are recorded (fake_ranks.h).
inline TransportMaker by_nccl(FakeNccl& fake) {
  return [&fake](std::unique_ptr<Transport> control, Backend& backend) {
    const int rank = control->rank();
    return make_nccl_transport(std::move(control), backend, fake.open(rank), {20.0, 0, 0.01});
  };
}

}  // namespace starling::tests
