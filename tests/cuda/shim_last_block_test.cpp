#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/cuda/runtime/launch.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/fakes/cuda/shim.h"

// Kernels whose last block combines what all have left: whichever block is last, the bits are the same, and the counters are 0 again. And
// kernels that come onto the device before the one ahead of them is done.
namespace starling::cuda {
namespace {

/// sums[0] = Σ partial, sums[1] = the block that was last. `short_by` makes a block combine before all have arrived.
__global__ void sum_by_last(float* partial, unsigned* counter, float* sums, unsigned short_by) {
  if (threadIdx.x == 0) partial[blockIdx.x] = 1.0f / static_cast<float>(blockIdx.x + 1);
  if (!last_block(counter, gridDim.x - short_by) || threadIdx.x != 0) return;
  sums[0] = 0.0f;
  for (unsigned b = 0; b < gridDim.x; ++b) sums[0] += partial[b];
  sums[1] = static_cast<float>(blockIdx.x);
}

__global__ void waits(int* out) {
  wait_for_previous_kernel();
  out[threadIdx.x] += 1;
}
__global__ void does_not_wait(int* out) { out[threadIdx.x] += 1; }
__global__ void waits_too_late(int* out) {
  __syncthreads();
  wait_for_previous_kernel();
  out[threadIdx.x] += 1;
}

}  // namespace
}  // namespace starling::cuda

namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::Order;
using Index = std::int64_t;

struct OrderBack {
  ~OrderBack() {
    cuda::shim::set_order(Order::kForward);
    cuda::shim::set_resident_blocks(2);
  }
};

using Results = std::vector<std::vector<double>>;

/// An operation with partial results, on inputs that have several parts. Its outputs follow.
struct Combining {
  const char* name;
  std::size_t launches;  ///< of the call
  Results (*run)(DType dtype);
};

Tensor matrix(Index rows, Index channels, std::uint64_t seed, DType dtype) {
  return placed(gpu(), random_given({rows, channels}, seed), dtype, 0);
}
Tensor vector(Index channels, std::uint64_t seed, DType dtype) {
  Given given = random_given({channels}, seed);
  for (double& v : given.numbers) v = std::abs(v) + 0.5;
  return placed(gpu(), given, dtype == DType::kFloat64 ? dtype : DType::kFloat32, 0);
}

constexpr Index kRows = 1500, kChannels = 80;

const Combining kCombining[] = {
    {"batch norm forward", 2,
     [](DType dtype) {
       const Tensor x = matrix(kRows, kChannels, 1, dtype), y = matrix(kRows, kChannels, 2, dtype);
       const BatchNormForward args{.x = x,
                                   .gamma = vector(kChannels, 3, dtype),
                                   .beta = vector(kChannels, 4, dtype),
                                   .y = y,
                                   .running_mean = vector(kChannels, 5, dtype),
                                   .running_var = vector(kChannels, 6, dtype),
                                   .saved_mean = vector(kChannels, 7, dtype),
                                   .saved_inv_std = vector(kChannels, 8, dtype)};
       gpu().batch_norm_forward(args);
       return Results{numbers_of(y), numbers_of(args.saved_mean), numbers_of(args.saved_inv_std), numbers_of(args.running_mean),
                      numbers_of(args.running_var)};
     }},
    {"batch norm backward", 2,
     [](DType dtype) {
       const BatchNormBackward args{.x = matrix(kRows, kChannels, 1, dtype),
                                    .dy = matrix(kRows, kChannels, 2, dtype),
                                    .gamma = vector(kChannels, 3, dtype),
                                    .saved_mean = vector(kChannels, 5, dtype),
                                    .saved_inv_std = vector(kChannels, 6, dtype),
                                    .dx = matrix(kRows, kChannels, 7, dtype),
                                    .dgamma = vector(kChannels, 8, dtype),
                                    .dbeta = vector(kChannels, 9, dtype),
                                    .relu = true,
                                    .beta = vector(kChannels, 4, dtype)};
       gpu().batch_norm_backward(args);
       return Results{numbers_of(args.dx), numbers_of(args.dgamma), numbers_of(args.dbeta)};
     }},
    {"channel sums", 1,
     [](DType dtype) {
       const ChannelSums args{
           .x = matrix(kRows, kChannels, 1, dtype), .sum = vector(kChannels, 2, dtype), .square_sum = vector(kChannels, 3, dtype)};
       gpu().channel_sums(args);
       return Results{numbers_of(args.sum), numbers_of(args.square_sum)};
     }},
    {"batch norm backward sums", 1,
     [](DType dtype) {
       const BatchNormBackwardSums args{.x = matrix(kRows, kChannels, 1, dtype),
                                        .dy = matrix(kRows, kChannels, 2, dtype),
                                        .saved_mean = vector(kChannels, 3, dtype),
                                        .saved_inv_std = vector(kChannels, 4, dtype),
                                        .gamma = vector(kChannels, 5, dtype),
                                        .beta = vector(kChannels, 6, dtype),
                                        .masked = matrix(kRows, kChannels, 7, dtype),
                                        .sum_dy = vector(kChannels, 8, dtype),
                                        .sum_dy_xhat = vector(kChannels, 9, dtype)};
       gpu().batch_norm_backward_sums(args);
       return Results{numbers_of(args.masked), numbers_of(args.sum_dy), numbers_of(args.sum_dy_xhat)};
     }},
    {"batch norm backward apply", 1,
     [](DType dtype) {
       const BatchNormBackwardApply args{.x = matrix(kRows, kChannels, 1, dtype),
                                         .dy = matrix(kRows, kChannels, 2, dtype),
                                         .gamma = vector(kChannels, 3, dtype),
                                         .saved_mean = vector(kChannels, 4, dtype),
                                         .saved_inv_std = vector(kChannels, 5, dtype),
                                         .sum_dy = vector(kChannels, 6, dtype),
                                         .sum_dy_xhat = vector(kChannels, 7, dtype),
                                         .dx = matrix(kRows, kChannels, 8, dtype),
                                         .dgamma = vector(kChannels, 9, dtype),
                                         .dbeta = vector(kChannels, 10, dtype),
                                         .accumulate = true};
       gpu().batch_norm_backward_apply(args);
       return Results{numbers_of(args.dx), numbers_of(args.dgamma), numbers_of(args.dbeta)};
     }},
    {"layer norm backward, parameters", 1,
     [](DType dtype) {
       const LayerNormBackward args{.x = matrix(kRows, kChannels, 1, dtype),
                                    .dy = matrix(kRows, kChannels, 2, dtype),
                                    .saved_mean = vector(kRows, 3, dtype),
                                    .saved_inv_std = vector(kRows, 4, dtype),
                                    .dgamma = vector(kChannels, 5, dtype),
                                    .dbeta = vector(kChannels, 6, dtype)};
       gpu().layer_norm_backward(args);
       return Results{numbers_of(args.dgamma), numbers_of(args.dbeta)};
     }},
    {"sums of rows", 1,
     [](DType dtype) {
       const SumRows args{matrix(kRows, kChannels, 1, dtype), vector(kChannels, 2, dtype), true};
       gpu().sum_rows(args);
       return Results{numbers_of(args.y)};
     }},
    {"squared distance", 1,
     [](DType dtype) {
       const Tensor totals = vector(2, 3, DType::kFloat64);
       gpu().squared_distance({matrix(kRows, kChannels * 3, 1, dtype), matrix(kRows, kChannels * 3, 2, dtype), totals, 1});
       return Results{numbers_of(totals)};
     }},
    {"loss", 1,
     [](DType dtype) {
       const std::vector<std::int32_t> labels(kRows, 7);
       const SoftmaxCrossEntropy args{.logits = matrix(kRows, kChannels, 1, dtype),
                                      .labels = int_tensor(gpu(), labels, {kRows}),
                                      .loss = vector(1, 2, dtype),
                                      .dlogits = matrix(kRows, kChannels, 3, dtype)};
       gpu().softmax_cross_entropy(args);
       return Results{numbers_of(args.loss), numbers_of(args.dlogits)};
     }},
    {"metrics", 1,
     [](DType dtype) {
       const std::vector<std::int32_t> labels(kRows, 7);
       const Tensor totals = vector(4, 2, DType::kFloat64);
       gpu().classification_metrics(
           {.logits = matrix(kRows, kChannels, 1, dtype), .labels = int_tensor(gpu(), labels, {kRows}), .totals = totals});
       return Results{numbers_of(totals)};
     }},
};

/// The launches of the operation itself: those after the last upload of its tensors.
std::vector<Call> launches_of(const Combining& op, DType dtype) {
  cuda::shim::start_recording();
  op.run(dtype);
  std::vector<Call> launches;
  for (const Call& call : cuda::shim::stop_recording()) {
    if (call.kind == CallKind::kCopy && call.copy == cuda::CopyKind::kHostToDevice) launches.clear();
    if (call.kind == CallKind::kLaunch) launches.push_back(call);
  }
  return launches;
}

bool all_zero(const unsigned* counters) {
  return std::all_of(counters, counters + cuda::CudaBackend::kArrivals, [](unsigned n) { return n == 0; });
}

}  // namespace

TEST_CASE("cuda/last block: any block may be the last, the sum has the same bits, and the counter is 0 again") {
  const OrderBack back;
  constexpr unsigned kBlocks = 5;
  std::set<int> last;
  unsigned counter = 0;
  float sums[2] = {}, expected = 0.0f;
  for (unsigned b = 0; b < kBlocks; ++b) expected += 1.0f / static_cast<float>(b + 1);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    cuda::shim::set_order(seed == 0 ? Order::kForward : seed == 1 ? Order::kBackward : Order::kShuffled, seed);
    std::vector<float> partial(kBlocks, NAN);
    cuda::launch(cuda::sum_by_last, {{kBlocks}, {64}, gpu().handle()}, partial.data(), &counter, sums, 0u);
    CHECK(sums[0] == expected);
    CHECK(counter == 0);
    last.insert(static_cast<int>(sums[1]));
  }
  CHECK(last.size() == kBlocks);
}

TEST_CASE("cuda/last block: a block that combines before all have arrived shows") {
  const OrderBack back;
  unsigned counter = 0;
  std::vector<float> partial(5, NAN);
  float sums[2] = {};
  cuda::launch(cuda::sum_by_last, {{5}, {64}, gpu().handle()}, partial.data(), &counter, sums, 1u);
  CHECK(std::isnan(sums[0]));
  CHECK(counter == 1);
}

TEST_CASE("cuda/last block: operations that combine have the same bits whichever block is last, and as few launches as they should") {
  const OrderBack back;
  for (const Combining& op : kCombining) {
    const std::string name = op.name;
    CAPTURE(name);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      CAPTURE(name_of(dtype));
      cuda::shim::set_order(Order::kForward);
      const auto first = op.run(dtype);
      CHECK(launches_of(op, dtype).size() == op.launches);
      for (std::uint64_t seed = 1; seed < 6; ++seed) {
        CAPTURE(seed);
        cuda::shim::set_order(seed == 1 ? Order::kBackward : Order::kShuffled, seed);
        CHECK(op.run(dtype) == first);
        CHECK(all_zero(gpu().arrivals()));
      }
    }
  }
}

TEST_CASE("cuda/last block: however many blocks a multiprocessor holds, the results agree") {
  const OrderBack back;
  for (const Combining& op : kCombining) {
    const std::string name = op.name;
    CAPTURE(name);
    const auto two = op.run(DType::kFloat32);
    for (const int blocks : {1, 3, 8}) {
      CAPTURE(blocks);
      cuda::shim::set_resident_blocks(blocks);
      const auto found = op.run(DType::kFloat32);
      for (std::size_t i = 0; i < found.size(); ++i) {
        double most = 0.0, away = 0.0;
        for (std::size_t j = 0; j < found[i].size(); ++j) {
          most = std::max(most, std::abs(two[i][j]));
          away = std::max(away, std::abs(found[i][j] - two[i][j]));
        }
        CHECK(away <= 2e-5 * most);
      }
    }
    cuda::shim::set_resident_blocks(2);
  }
}

TEST_CASE("cuda/last block: streams and captures have counters of their own") {
  std::set<unsigned*> all;
  for (const StreamKind kind : {StreamKind::kCompute, StreamKind::kUpdate, StreamKind::kCommunication, StreamKind::kUpload}) {
    const StreamScope scope(gpu(), kind);
    CHECK(all.insert(gpu().arrivals()).second);
    CHECK(all_zero(gpu().arrivals()));
  }
  REQUIRE(gpu().begin_capture({}));
  const bool apart = all.insert(gpu().arrivals()).second, zero = all_zero(gpu().arrivals());
  gpu().abandon_capture();
  CHECK(apart);
  CHECK(zero);
}

TEST_CASE("cuda/dependent launch: only kernels that wait first are launched so, right after one of the same operation") {
  std::set<std::string> dependent;
  for (const Combining& op : kCombining) {
    const std::string name = op.name;
    CAPTURE(name);
    const std::vector<Call> launches = launches_of(op, DType::kFloat32);
    for (std::size_t i = 0; i < launches.size(); ++i) {
      if (!launches[i].dependent) continue;
      dependent.insert(name);
      REQUIRE(i > 0);
      CHECK(launches[i].stream == launches[i - 1].stream);
      CHECK(launches[i].label == launches[i - 1].label);
    }
  }
  CHECK(dependent == std::set<std::string>{"batch norm forward", "batch norm backward"});
}

TEST_CASE("cuda/dependent launch: a kernel that does not wait first is refused") {
  int numbers[64] = {};
  const cuda::Launch how{.grid = {1}, .block = {64}, .stream = gpu().handle(), .dependent = true};
  cuda::launch(cuda::waits, how, numbers);
  CHECK(numbers[63] == 1);
  CHECK_THROWS_AS(cuda::launch(cuda::does_not_wait, how, numbers), Error);
  CHECK_THROWS_AS(cuda::launch(cuda::waits_too_late, how, numbers), Error);
  cuda::launch(cuda::waits, how, numbers);
}

}  // namespace starling::tests
