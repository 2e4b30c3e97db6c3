#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/cuda_backend.h"

// Tests of the CUDA backend run on the CPU through the shim (test_cuda), and on a GPU
// (test_cuda_device): the same sources but for shim_*_test.cpp, which look into the shim and the
// fake runtime.
namespace starling::tests {

/// The backend under test, opened at the first call.
cuda::CudaBackend& gpu();

inline constexpr std::array kStreams = {StreamKind::kCompute, StreamKind::kUpdate,
                                        StreamKind::kCommunication, StreamKind::kUpload};
inline cuda::StreamHandle handle_of(cuda::CudaBackend& backend, StreamKind stream) {
  const StreamScope scope(backend, stream);
  return backend.handle();
}

/// A tensor's numbers.
template <class T = float>
std::vector<T> host_copy(const Tensor& x) {
  std::vector<T> numbers(static_cast<std::size_t>(x.elements()));
  x.backend().copy_to_host(x, numbers.data());
  return numbers;
}

/// Runs `test` once for each order in which the shim can run a block's threads; once on a GPU.
void in_every_order(const std::function<void()>& test);

/// What compiles kernels: NVRTC, or the C++ compiler in its place.
std::unique_ptr<cuda::Compiler> compiler();

/// True on a GPU, where libraries do the products and rounding may differ.
bool on_gpu();

}  // namespace starling::tests
