#pragma once

#include <optional>

// Stand-ins for cuDNN and cuBLASLt on the fake runtime. With them a training issues the device work that it would on a GPU: one item for
// each convolution and product (the record's labels: "cudnn convolution", "cublaslt product"), carried out by the CPU backend.
namespace starling::cuda::shim {

struct FakeLibraries {
  bool on = false;  ///< otherwise the backend's own kernels do all
};

/// For backends opened from now on. Without a value the environment says: STARLING_SHIM_CUDNN=1.
void set_libraries(const std::optional<FakeLibraries>& libraries);

/// Backends opened while it lives have the stand-ins, or own kernels alone.
struct UsingLibraries {
  explicit UsingLibraries(bool on) { set_libraries(FakeLibraries{.on = on}); }
  ~UsingLibraries() { set_libraries({}); }
  UsingLibraries(const UsingLibraries&) = delete;
  UsingLibraries& operator=(const UsingLibraries&) = delete;
};

}  // namespace starling::cuda::shim
