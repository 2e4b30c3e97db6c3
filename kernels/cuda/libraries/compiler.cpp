#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "kernels/cuda/device/map_arguments.h"
#include "kernels/cuda/libraries/kernel_headers.h"
#include "kernels/cuda/libraries/libraries.h"

namespace starling::cuda {

namespace {

/// Compiles a source to machine code for a compute capability; empty on failure, with the reason in
/// `why`.
std::vector<char> compile(const std::string& text, const std::string& capability,
                          std::string& why) {
  std::vector<const char*> names, texts;
  for (const KernelHeader& header : kernel_headers()) {
    names.push_back(header.name);
    texts.push_back(header.text);
  }
  nvrtcProgram program = nullptr;
  nvrtcResult result = nvrtcCreateProgram(
      &program, text.c_str(), "map.cu", static_cast<int>(names.size()), texts.data(), names.data());
  std::vector<char> code;
  if (result == NVRTC_SUCCESS) {
    const std::string architecture = "--gpu-architecture=sm_" + capability;
    // Functions without a qualifier are device functions.
    const char* options[] = {architecture.c_str(), "--std=c++20", "-default-device"};
    result = nvrtcCompileProgram(program, 3, options);
    std::size_t bytes = 0;
    if (result == NVRTC_SUCCESS && nvrtcGetCUBINSize(program, &bytes) == NVRTC_SUCCESS) {
      code.resize(bytes);
      result = nvrtcGetCUBIN(program, code.data());
    } else if (nvrtcGetProgramLogSize(program, &bytes) == NVRTC_SUCCESS && bytes > 1) {
      why.resize(bytes);
      nvrtcGetProgramLog(program, why.data());
    }
    nvrtcDestroyProgram(&program);
  }
  if (result != NVRTC_SUCCESS) {
    why = std::string(nvrtcGetErrorString(result)) + (why.empty() ? "" : ": ") +
          why.substr(0, why.find('\n'));
    code.clear();
  }
  return code;
}

class Nvrtc final : public Compiler {
 public:
  explicit Nvrtc(const DeviceInfo& device)
      : capability_(std::to_string(device.major) + std::to_string(device.minor)) {}

  bool launch(const std::string& key, const std::function<std::string()>& text, unsigned blocks,
              const MapArguments& arguments, StreamHandle stream, bool capturing) override {
    const void* kernel = find(key, text, capturing);
    if (!kernel) return false;
    MapArguments values = arguments;
    void* pointers[] = {&values};
    launch_kernel(kernel, {blocks}, {kThreads}, 0, stream, pointers, "compiled map");
    return true;
  }

 private:
  const void* find(const std::string& key, const std::function<std::string()>& text,
                   bool capturing) {
    static std::mutex mutex;
    // Per process, since libraries are loaded on every device. Null: compilation failed.
    static std::map<std::string, const void*> kernels;
    const std::lock_guard lock(mutex);
    const auto found = kernels.find(capability_ + key);
    if (found != kernels.end()) return found->second;
    if (capturing) return nullptr;
    std::string why;
    const std::vector<char> code = compile(text(), capability_, why);
    cudaKernel_t kernel = nullptr;
    if (!code.empty()) {
      cudaLibrary_t library = nullptr;
      cudaError_t error =
          cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (error == cudaSuccess) error = cudaLibraryGetKernel(&kernel, library, "compiled_map");
      if (error != cudaSuccess) why = cudaGetErrorString(error);
    }
    if (!kernel && !std::exchange(logged_, true))
      log::warning("[cuda] a chain of functions runs step by step, as it was not compiled: {}",
                   why);
    return kernels[capability_ + key] = reinterpret_cast<const void*>(kernel);
  }

  std::string capability_;
  bool logged_ = false;
};

}  // namespace

std::unique_ptr<Compiler> open_compiler(const LibrarySettings& settings) {
  return std::make_unique<Nvrtc>(settings.device);
}

}  // namespace starling::cuda
