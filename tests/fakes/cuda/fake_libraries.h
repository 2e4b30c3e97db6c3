#pragma once

// Stand-ins for cuDNN, cuBLASLt and NVRTC on the fake runtime, the last not by the environment.
// With them a training issues the device work that it would on a GPU: one item for each convolution
// and product (the record's labels: "cudnn convolution", "cublaslt product"), carried out by the
// CPU backend.
namespace starling::cuda::shim {

/// Backends opened while it lives have the stand-ins, or own kernels alone. Otherwise the
/// environment says: STARLING_SHIM_CUDNN=1.
struct UsingLibraries {
  explicit UsingLibraries(bool on);
  ~UsingLibraries();
  UsingLibraries(const UsingLibraries&) = delete;
  UsingLibraries& operator=(const UsingLibraries&) = delete;
};

}  // namespace starling::cuda::shim
