#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/runtime/launch.h"
#include "tests/cuda/support.h"
#include "tests/fakes/cuda/shim.h"
#include "tests/support/errors.h"

// What the shim finds that a GPU would let pass or hang in. What it does right shows in every
// kernel that runs on it.
namespace starling::cuda {
namespace {

/// Sums a block by shared memory without the barriers that it needs: a race.
__global__ void sum_racing(const float* in, float* out) {
  float* part = dynamic_shared<float>();
  part[threadIdx.x] = in[threadIdx.x];
  if (threadIdx.x == 0) {
    float sum = 0;
    for (unsigned i = 0; i < blockDim.x; ++i) sum += part[i];
    *out = sum;
  }
}

/// Copies numbers by way of shared memory, four a thread, where its number is even.
__global__ void copy_by_shared(const float* in, float* out, int* waits) {
  float* to = dynamic_shared<float>() + 4 * threadIdx.x;
  copy_async<16>(to, in + 4 * threadIdx.x, threadIdx.x % 2 == 0);
  if (*waits) finish_copies();
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + static_cast<unsigned>(i)] = to[i];
}

/// The halves of a warp do different things, with words that no kernel of ours uses.
__global__ void halves(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane < 16) {
    out[threadIdx.x] = __shfl_down_sync(0x0000ffffu, lane, 4u, 8);
  } else {
    __syncwarp(0xffff0000u);
    out[threadIdx.x] = __shfl_xor_sync(0xffff0000u, lane, 2);
  }
}

__global__ void early_return(int* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  atomicAdd(out, 1);
}

__global__ void two_barriers(int* out) {
  if (threadIdx.x < 3) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  *out = 1;
}

__global__ void barrier_and_shuffle(int* out) {
  if (threadIdx.x < 3) {
    __syncthreads();
  } else {
    *out = __shfl_sync(0xffffffffu, 1, 0);
  }
}

__global__ void strange_source(int* out) { *out = __shfl_sync(0xffffffffu, 1, 31); }
__global__ void foreign_mask(int* out) { *out = __shfl_sync(1u, 1, 0); }

std::string error_of(void (*kernel)(int*), unsigned threads) {
  int out = 0;
  return test::error_text([&] { launch(kernel, {{1}, {threads}}, &out); });
}

TEST_CASE(
    "cuda/shim: a copy that nobody waited for is NaN, and one beside its alignment an error") {
  alignas(16) const float in[] = {1, 2, 3, 4, 5};
  float out[8];
  int waits = 1;
  const auto copy = [&](const float* from) {
    launch(copy_by_shared, {{1}, {2}, nullptr, 32}, from, out, &waits);
  };
  copy(in);
  CHECK(std::vector<float>(out, out + 8) == std::vector<float>{1, 2, 3, 4, 0, 0, 0, 0});
  waits = 0;
  copy(in);
  CHECK(std::all_of(out, out + 8, [](float x) { return x != x; }));
  CHECK(test::error_text([&] { copy(in + 1); }).find("multiples of 16") != std::string::npos);
}

TEST_CASE("cuda/shim: a missing barrier shows in another order") {
  std::vector<float> in(64, 1.0f), found;
  tests::in_every_order([&] {
    float out = 0;
    launch(sum_racing, {{1}, {64}, nullptr, 256}, in.data(), &out);
    found.push_back(out);
  });
  CHECK(found[1] == 64.0f);           // backward: thread 0 is the last
  CHECK_FALSE(found[0] == found[1]);  // forward: it finds what nobody wrote, NaN
}

TEST_CASE("cuda/shim: halves of a warp part ways, and threads that returned count as arrived") {
  tests::in_every_order([] {
    std::vector<int> half(64);
    launch(halves, {{1}, {64}}, half.data());
    for (int t = 0; t < 64; ++t) {
      const int lane = t % 32;
      CHECK(half[static_cast<std::size_t>(t)] == (lane >= 16     ? lane ^ 2
                                                  : lane % 8 < 4 ? lane + 4
                                                                 : lane));
    }
    int out = 0;
    launch(early_return, {{1}, {64}}, &out);
    CHECK(out == 40);
  });
}

TEST_CASE("cuda/shim: what would hang or be undefined on a GPU is an error") {
  CHECK(test::contains(error_of(two_barriers, 8), "different barriers"));
  CHECK(test::contains(error_of(barrier_and_shuffle, 32), "never make that call"));
  CHECK(test::contains(error_of(strange_source, 8), "does not take part"));
  CHECK(test::contains(error_of(foreign_mask, 8), "does not name it"));
  CHECK(test::contains(error_of(early_return, 1025), "1025"));
  CHECK(test::contains(error_of(early_return, 0), "block of 0"));
  CHECK(error_of(early_return, 64).empty());  // and the shim still works
}

}  // namespace
}  // namespace starling::cuda
