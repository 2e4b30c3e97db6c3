#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/runtime/launch.h"
#include "tests/cuda/support.h"
#include "tests/fakes/cuda/shim.h"
#include "tests/support/errors.h"

namespace starling::cuda {
namespace {

__global__ void coordinates(int* out, int width) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x),
            y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  out[y * width + x] += 1000 * x + y;
}

/// Sums a block by shared memory.
__global__ void sum_shared(const float* in, float* out) {
  __shared__ float part[256];
  part[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

/// The same without the barriers that it needs: a race.
__global__ void sum_racing(const float* in, float* out) {
  float* part = dynamic_shared<float>();
  part[threadIdx.x] = in[threadIdx.x];
  if (threadIdx.x == 0) {
    float sum = 0;
    for (unsigned i = 0; i < blockDim.x; ++i) sum += part[i];
    *out = sum;
  }
}

__global__ void sum_shuffled(const int* in, int* out) {
  int value = in[threadIdx.x];
  for (int delta = 16; delta > 0; delta /= 2)
    value += __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(delta));
  if (threadIdx.x % 32 == 0) atomicAdd(out, value);
}

__global__ void shuffles(double* out) {
  const double mine = threadIdx.x;
  out[threadIdx.x * 4 + 0] = __shfl_sync(0xffffffffu, mine, 5);
  out[threadIdx.x * 4 + 1] = __shfl_xor_sync(0xffffffffu, mine, 3);
  out[threadIdx.x * 4 + 2] = __shfl_down_sync(0xffffffffu, mine, 4u, 8);
  const unsigned odd = __ballot_sync(0xffffffffu, threadIdx.x % 2);
  out[threadIdx.x * 4 + 3] = odd + (__any_sync(0xffffffffu, threadIdx.x == 40) ? 0.5 : 0.0);
}

/// The halves of a warp do different things.
__global__ void halves(int* out) {
  const unsigned lane = threadIdx.x % 32;
  if (lane < 16) {
    out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, static_cast<int>(lane), 1);
  } else {
    __syncwarp(0xffff0000u);
    out[threadIdx.x] = __shfl_xor_sync(0xffff0000u, static_cast<int>(lane), 2);
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

TEST_CASE("cuda/shim: every thread of every block runs once, with its coordinates") {
  tests::in_every_order([] {
    std::vector<int> out(12 * 10, 0);
    launch(coordinates, {{3, 2}, {4, 5}}, out.data(), 12);
    for (int y = 0; y < 10; ++y) {
      for (int x = 0; x < 12; ++x) CHECK(out[static_cast<std::size_t>(y * 12 + x)] == 1000 * x + y);
    }
  });
}

TEST_CASE("cuda/shim: barriers order shared memory, in every order of threads") {
  std::vector<float> in(1024), out(4);
  std::iota(in.begin(), in.end(), 0.0f);
  tests::in_every_order([&] {
    launch(sum_shared, {{4}, {256}}, in.data(), out.data());
    CHECK(out == std::vector<float>{32640, 98176, 163712, 229248});
  });
}

TEST_CASE("cuda/shim: a missing barrier shows in another order") {
  std::vector<float> in(64, 1.0f);
  std::vector<float> found;
  tests::in_every_order([&] {
    float out = 0;
    launch(sum_racing, {{1}, {64}, nullptr, 256}, in.data(), &out);
    found.push_back(out);
  });
  CHECK(found[1] == 64.0f);           // backward: thread 0 is the last
  CHECK_FALSE(found[0] == found[1]);  // forward: it finds what nobody wrote, NaN
}

TEST_CASE("cuda/shim: shuffles, votes and atomics") {
  tests::in_every_order([] {
    std::vector<int> in(96);
    std::iota(in.begin(), in.end(), 1);
    int sum = 0;
    launch(sum_shuffled, {{1}, {96}}, in.data(), &sum);
    CHECK(sum == 96 * 97 / 2);

    std::vector<double> out(64 * 4);
    launch(shuffles, {{1}, {64}}, out.data());
    for (unsigned t = 0; t < 64; ++t) {
      CHECK(out[t * 4 + 0] == t / 32 * 32 + 5);
      CHECK(out[t * 4 + 1] == (t ^ 3u));
      CHECK(out[t * 4 + 2] == (t % 8 < 4 ? t + 4 : t));
      CHECK(out[t * 4 + 3] == 0xaaaaaaaau + (t / 32 == 1 ? 0.5 : 0.0));
    }

    std::vector<int> half(64);
    launch(halves, {{1}, {64}}, half.data());
    for (unsigned t = 0; t < 64; ++t)
      CHECK(half[t] == static_cast<int>((t % 32) ^ (t % 32 < 16 ? 1u : 2u)));
  });
}

TEST_CASE("cuda/shim: threads that returned count as arrived") {
  tests::in_every_order([] {
    int out = 0;
    launch(early_return, {{1}, {64}}, &out);
    CHECK(out == 40);
  });
}

TEST_CASE("cuda/shim: what would hang or be undefined on a GPU is an error") {
  CHECK(error_of(two_barriers, 8).find("different barriers") != std::string::npos);
  CHECK(error_of(barrier_and_shuffle, 32).find("never make that call") != std::string::npos);
  CHECK(error_of(strange_source, 8).find("does not take part") != std::string::npos);
  CHECK(error_of(foreign_mask, 8).find("does not name it") != std::string::npos);
  CHECK(error_of(early_return, 1025).find("1025") != std::string::npos);
  CHECK(error_of(early_return, 0).find("block of 0") != std::string::npos);
  CHECK(error_of(early_return, 64).empty());  // and the shim still works
}

}  // namespace
}  // namespace starling::cuda
