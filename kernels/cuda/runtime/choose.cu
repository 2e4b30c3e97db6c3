#include "kernels/cuda/runtime/choose.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/runtime/launch.h"

namespace starling::cuda {
namespace {

constexpr int kChooseThreads = 128;

/// One block: some hundred bytes to some thousand.
__global__ void choose_kernel(Choice c) {
  const std::int32_t next = c.table[2 * *c.place + (c.control[1] != 0.0 ? 1 : 0)];
  __syncthreads();  // all threads have read the place
  if (threadIdx.x == 0) *c.place = next;
  struct alignas(16) Sixteen {
    std::uint64_t low, high;
  };
  const auto* from = reinterpret_cast<const Sixteen*>(c.candidates + static_cast<std::size_t>(next) * c.bytes);
  auto* to = reinterpret_cast<Sixteen*>(c.to);
  for (std::size_t i = threadIdx.x; i < c.bytes / sizeof(Sixteen); i += kChooseThreads) to[i] = from[i];
}

}  // namespace

void choose(const Choice& choice, StreamHandle stream) { launch(choose_kernel, {{1}, {kChooseThreads}, stream}, choice); }

}  // namespace starling::cuda
