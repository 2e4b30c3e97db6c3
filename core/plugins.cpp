#include "core/plugins.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <set>

#include "core/error.h"

namespace starling {

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
