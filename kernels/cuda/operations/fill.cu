#include <algorithm>
#include <cstdint>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"

namespace starling::cuda {
namespace {

/// x[i] = value; `packs` of 16 bytes from element `head` on, where x + head is a multiple of 16.
template <class T>
__global__ void fill_kernel(T* x, T value, Index n, Index head, Index packs) {
  Pack<T> pack;
  for (int i = 0; i < Pack<T>::kSize; ++i) pack.v[i] = value;
  const Index stride = Index{gridDim.x} * blockDim.x;
  const Index first = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  auto* aligned = reinterpret_cast<Pack<T>*>(x + head);
  for (Index i = first; i < packs; i += stride) aligned[i] = pack;
  const Index covered = packs * Pack<T>::kSize;
  for (Index i = first; i < n - covered; i += stride) x[i < head ? i : i + covered] = value;
}

template <class T>
void fill_with(CudaBackend& backend, const Tensor& x, T value) {
  auto* numbers = reinterpret_cast<T*>(x.raw());
  const Index n = x.elements();
  const Index past = static_cast<Index>(reinterpret_cast<std::uintptr_t>(numbers) % 16 / sizeof(T));
  const Index head = std::min<Index>(n, past == 0 ? 0 : Pack<T>::kSize - past);
  const Index packs = (n - head) / Pack<T>::kSize;
  launch(fill_kernel<T>, {{blocks_for(packs, kThreads, 4)}, {kThreads}, backend.handle()}, numbers,
         value, n, head, packs);
}

}  // namespace

void fill_numbers(CudaBackend& backend, const Tensor& x, double value) {
  switch (x.dtype()) {
    case DType::kFloat32: return fill_with(backend, x, static_cast<float>(value));
    case DType::kFloat64: return fill_with(backend, x, value);
    case DType::kBFloat16: return fill_with(backend, x, BFloat16(static_cast<float>(value)).bits);
    case DType::kFloat16: return fill_with(backend, x, Float16(static_cast<float>(value)).bits);
    case DType::kInt64: return fill_with(backend, x, static_cast<std::int64_t>(value));
    case DType::kInt32: return fill_with(backend, x, static_cast<std::int32_t>(value));
    case DType::kUInt8: return fill_with(backend, x, static_cast<std::uint8_t>(value));
  }
}

}  // namespace starling::cuda
