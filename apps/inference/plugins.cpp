#include "apps/inference/plugins.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>

#include "apps/inference/plugin_stamp.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/registry.h"
#include "core/text.h"

namespace starling {
namespace {

struct Stamp {
  std::string interface, library, version, commit, compiler;
  std::string text() const {
    return fmt::format("starling {} (commit {}, headers {}), {}, {}", version, commit, interface,
                       compiler, library);
  }
};

/// Reads the first stamp in `bytes`; without one, all is empty.
Stamp stamp_in(std::string_view bytes) {
  constexpr std::string_view kBegin = STARLING_STAMP_BEGIN;
  constexpr std::size_t kLongest = 100;  // characters of a line
  Stamp stamp;
  const auto found = std::search(bytes.begin(), bytes.end(),
                                 std::boyer_moore_horspool_searcher(kBegin.begin(), kBegin.end()));
  if (found == bytes.end()) return stamp;
  bytes.remove_prefix(static_cast<std::size_t>(found - bytes.begin()) + kBegin.size());
  for (std::string* line :
       {&stamp.interface, &stamp.library, &stamp.version, &stamp.commit, &stamp.compiler}) {
    const std::size_t end = bytes.find('\n');
    if (end == std::string_view::npos) break;
    *line = shown(bytes.substr(0, end), kLongest);
    bytes.remove_prefix(end + 1);
  }
  return stamp;
}

void check_stamp(const std::string& path, const std::string& file) {
  const std::string bytes = read_file(file).text;
  if (!bytes.starts_with("\x7f"
                         "ELF"))
    fail(ExitCode::kUsage, "plugin", {.key = "plugins"}, "{} is no shared library", path);
  const Stamp theirs = stamp_in(bytes), ours = stamp_in(STARLING_STAMP);
  if (theirs.compiler.empty()) {
    fail(ExitCode::kUsage, "plugin", {.key = "plugins"},
         "{} does not say what it was compiled with, as files of starling_add_plugin() do; build "
         "it with that, against this program",
         path);
  }
  const char* other = theirs.interface != ours.interface ? "headers"
                      : theirs.library != ours.library   ? "rules of the standard library"
                                                         : nullptr;
  if (!other) return;
  fail(ExitCode::kUsage, "plugin", {.key = "plugins"},
       "{} was compiled with other {} than this program: {}, and this is {}; build it again, "
       "against this program",
       path, other, theirs.text(), ours.text());
}

}  // namespace

void load_plugins(const std::vector<std::string>& paths) {
  static std::mutex mutex;
  static std::set<std::string> loaded;
  const std::lock_guard lock(mutex);
  for (const std::string& path : paths) {
    std::error_code error;
    const std::string file = std::filesystem::weakly_canonical(path, error).string();
    if (!std::filesystem::is_regular_file(file, error)) {
      std::vector<std::string> beside;
      const std::filesystem::path wanted(file);
      for (const auto& entry : std::filesystem::directory_iterator(wanted.parent_path(), error))
        if (entry.path().extension() == ".so") beside.push_back(entry.path().filename().string());
      fail(ExitCode::kUsage, "plugin", "plugins: there is no file {} (looked in {}){}", path,
           std::filesystem::current_path(error).string(),
           suggestion(wanted.filename().string(), beside));
    }
    if (loaded.count(file) != 0) continue;
    check_stamp(path, file);
    const PluginScope registering(path);
    named("plugin", path, [&] {
      void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!handle) fail(ExitCode::kUsage, "plugin", "plugins: cannot open {}: {}", path, dlerror());
      using Register = void (*)();
      const auto enter = reinterpret_cast<Register>(dlsym(handle, "starling_register_plugin"));
      if (!enter) {
        dlclose(handle);
        fail(ExitCode::kUsage, "plugin",
             "plugins: {} has no function starling_register_plugin; needed: extern \"C\" void "
             "starling_register_plugin()",
             path);
      }
      enter();  // the library stays open to the program's end: its makers and objects live in it
    });
    loaded.insert(file);
  }
}

}  // namespace starling
