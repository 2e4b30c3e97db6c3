#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "core/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda_libraries.h"
#include "kernels/cuda_plugin.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

/// The folder of the library that this function is in, with a slash, or "".
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&kStarlingCudaEntry), &info) == 0 || !info.dli_fname)
    return {};
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

std::unique_ptr<Backend> open_cuda(const BackendSettings& settings) {
  std::string why;
  const auto open =
      reinterpret_cast<StarlingCudaOpen>(cuda_plugin_function(kStarlingCudaEntry, why));
  if (!open) fail(ExitCode::kUsage, "cuda", "the device 'cuda' needs {}", why);
  const char* share = std::getenv("STARLING_SHARE_GPUS");
  StarlingCudaOpening opening{};
  opening.abi = kStarlingCudaAbi;
  opening.local_rank = settings.local_rank;
  opening.local_size = settings.local_size;
  opening.share = share && std::string(share) == "1";
  opening.tf32 = settings.tf32;
  opening.benchmark = settings.benchmark;
  opening.deterministic = settings.deterministic;
  const std::uint32_t abi = open(&opening);
  if (abi != kStarlingCudaAbi) {
    fail(ExitCode::kUsage, "cuda",
         "the plug-in {} speaks version {} of the interface, this program {}; build both from the "
         "same source",
         kStarlingCudaLibrary, abi, kStarlingCudaAbi);
  }
  if (!opening.backend) fail(ExitCode::kUsage, "cuda", "{}; or --device cpu", opening.message);
  return std::unique_ptr<Backend>(opening.backend);
}

}  // namespace

void* cuda_plugin_function(const char* name, std::string& why) {
  void* library = nullptr;
  std::string reason;
  for (const std::string& path :
       {own_folder() + kStarlingCudaLibrary, std::string(kStarlingCudaLibrary)}) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library) break;
    const char* error = dlerror();
    // A library that is there but cannot be loaded says more than one that is not.
    const std::string words = error ? error : "no reason given";
    if (access(path.c_str(), F_OK) == 0) {
      reason = explain_cuda_load_error(path, words);
    } else if (reason.empty()) {
      reason = words;
    }
  }
  if (!library) {
    why = fmt::format(
        "the plug-in {}, which cannot be loaded ({}); builds without it compute on the CPU: use "
        "--device cpu or auto",
        kStarlingCudaLibrary, reason);
    return nullptr;
  }
  void* function = dlsym(library, name);
  if (!function)
    why = fmt::format(
        "the plug-in {} with a function {}, which it lacks; build it again from this version's "
        "source",
        kStarlingCudaLibrary, name);
  return function;
}

std::unique_ptr<Backend> open_backend(DeviceType device, const BackendSettings& settings) {
  switch (device) {
    case DeviceType::kMeta: return make_meta_backend();
    case DeviceType::kCpu: return std::make_unique<CpuBackend>(settings.threads);
    case DeviceType::kCuda: return open_cuda(settings);
  }
  fail(ExitCode::kInternal, "backend", "there is no device number {}", static_cast<int>(device));
}

}  // namespace starling
