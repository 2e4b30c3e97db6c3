#include "apps/trainer/config/plugins.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <set>

#include "apps/trainer/data/augment.h"
#include "apps/trainer/data/dataset.h"
#include "apps/trainer/data/sampler.h"
#include "apps/trainer/schedules/schedule.h"
#include "apps/trainer/tasks/metric.h"
#include "comm/algorithm.h"
#include "core/error.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"
#include "topology/topology.h"

namespace starling {

void register_builtins() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_builtin_layers();
    register_builtin_models();
    register_builtin_topologies();
    register_builtin_optimizers();
    register_builtin_schedules();
    register_builtin_datasets();
    register_builtin_samplers();
    register_builtin_augmentations();
    register_builtin_tasks();
    register_builtin_losses();
    register_builtin_metrics();
    register_builtin_algorithms();
  });
}

void load_plugins(const std::vector<std::string>& paths) {
  static std::mutex mutex;
  static std::set<std::string> loaded;
  const std::lock_guard lock(mutex);
  for (const std::string& path : paths) {
    std::error_code error;
    const std::string file = std::filesystem::weakly_canonical(path, error).string();
    if (!std::filesystem::is_regular_file(file, error)) {
      fail(ExitCode::kUsage, "plugin", "plugins: there is no file {} (looked in {})", path, std::filesystem::current_path(error).string());
    }
    if (loaded.count(file) != 0) continue;
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) fail(ExitCode::kUsage, "plugin", "plugins: cannot open {}: {}", path, dlerror());
    using Register = void (*)();
    const auto enter = reinterpret_cast<Register>(dlsym(handle, "starling_register_plugin"));
    if (!enter) {
      dlclose(handle);
      fail(ExitCode::kUsage, "plugin",
           "plugins: {} has no function starling_register_plugin; needed: extern \"C\" void starling_register_plugin()", path);
    }
    enter();  // the library stays open to the program's end: its makers and objects live in it
    loaded.insert(file);
  }
}

}  // namespace starling
