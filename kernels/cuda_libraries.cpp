#include "kernels/cuda_libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstddef>
#include <string>

// Versions that this build's plug-in was compiled against (kernels/CMakeLists.txt); empty without
// the plug-in.
#ifndef STARLING_BUILT_CUDA
#define STARLING_BUILT_CUDA ""
#endif
#ifndef STARLING_BUILT_CUDNN
#define STARLING_BUILT_CUDNN ""
#endif
#ifndef STARLING_BUILT_NCCL
#define STARLING_BUILT_NCCL ""
#endif

namespace starling {
namespace {

std::string dotted(std::size_t number) {
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::string runtime_version(void* function) {
  int number = 0;
  if (reinterpret_cast<int (*)(int*)>(function)(&number) != 0) return {};
  return fmt::format("{}.{}", number / 1000, number / 10 % 100);
}
std::string nvrtc_version(void* function) {
  int major = 0;
  int minor = 0;
  if (reinterpret_cast<int (*)(int*, int*)>(function)(&major, &minor) != 0) return {};
  return fmt::format("{}.{}", major, minor);
}
std::string nccl_version(void* function) {
  int number = 0;
  if (reinterpret_cast<int (*)(int*)>(function)(&number) != 0) return {};
  return dotted(static_cast<std::size_t>(number));
}
std::string plain_version(void* function) {
  return dotted(reinterpret_cast<std::size_t (*)()>(function)());
}

struct CudaLibrary {
  const char* name;
  const char* file;            ///< how the library's file name begins
  const char* symbols;         ///< how its functions' names begin
  const char* version_symbol;  ///< the function that tells its version
  std::string (*version)(void* function);
  const char* built;  ///< what the plug-in was compiled against; empty: nothing is known of it
  const char* wheel;  ///< the Python wheel that has it, for CUDA 13
};
constexpr CudaLibrary kLibraries[] = {
    {"NCCL", "libnccl.so", "nccl", "ncclGetVersion", nccl_version, STARLING_BUILT_NCCL,
     "nvidia-nccl-cu13"},
    {"cuDNN", "libcudnn", "cudnn", "cudnnGetVersion", plain_version, STARLING_BUILT_CUDNN,
     "nvidia-cudnn-cu13"},
    {"cuBLASLt", "libcublasLt.so", "cublasLt", "cublasLtGetVersion", plain_version,
     STARLING_BUILT_CUDA, "nvidia-cublas"},
    {"NVRTC", "libnvrtc", "nvrtc", "nvrtcVersion", nvrtc_version, STARLING_BUILT_CUDA,
     "nvidia-cuda-nvrtc"},
    {"the CUDA runtime", "libcudart.so", "cuda", "cudaRuntimeGetVersion", runtime_version,
     STARLING_BUILT_CUDA, "nvidia-cuda-runtime"},
    {"the CUDA runtime", "libcudart.so", "__cuda", "cudaRuntimeGetVersion", runtime_version,
     STARLING_BUILT_CUDA, "nvidia-cuda-runtime"},
};

std::string built_with(const CudaLibrary& library) {
  return *library.built ? fmt::format(", and the plug-in was built with {}", library.built)
                        : std::string();
}

/// Version and file of the library that the plug-in finds: opened lazily, it may lack functions. In
/// a name space of its own, or the plug-in would count as loaded from then on. Empty where even
/// that fails.
std::string found(const std::string& plugin, const CudaLibrary& library) {
  void* handle = dlmopen(LM_ID_NEWLM, plugin.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!handle) return {};
  std::string result;
  if (void* function = dlsym(handle, library.version_symbol)) {
    Dl_info info{};
    const bool known = dladdr(function, &info) != 0 && info.dli_fname;
    result = known ? fmt::format("{} ({})", library.version(function), info.dli_fname)
                   : library.version(function);
  }
  dlclose(handle);
  return result;
}

}  // namespace

std::string explain_cuda_load_error(const std::string& path, const std::string& error) {
  const std::string undefined = "undefined symbol: ";
  const auto place = error.find(undefined);
  if (place != std::string::npos) {
    const std::string symbol = error.substr(place + undefined.size());
    for (const CudaLibrary& library : kLibraries) {
      if (symbol.rfind(library.symbols, 0) != 0) continue;
      const std::string here = found(path, library);
      return fmt::format(
          "{}: {} lacks it{}; put the folder of one as new as that first into LD_LIBRARY_PATH",
          error, here.empty() ? library.name : fmt::format("{} {}", library.name, here),
          built_with(library));
    }
  }
  if (error.find("cannot open shared object file") == std::string::npos) return error;
  for (const CudaLibrary& library : kLibraries) {
    if (error.rfind(library.file, 0) != 0) continue;
    return fmt::format(
        "{}: {} is missing: install it (the Python wheel {} has it, for CUDA 13) and put its "
        "folder into LD_LIBRARY_PATH",
        error, library.name, library.wheel);
  }
  return error;
}

}  // namespace starling
