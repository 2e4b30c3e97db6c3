#include "core/near_path.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "core/registry.h"
#include "core/text.h"

namespace starling {

namespace fs = std::filesystem;

namespace {

struct Missing {
  std::string path, suggestion;
};

Missing find_missing(const std::string& path) {
  constexpr std::size_t kMostNames = 10'000;  // a folder of data may have millions
  fs::path there;
  for (const fs::path& part : fs::path(path)) {
    const fs::path next = there / part;
    std::error_code error;
    if (part.empty() || fs::exists(next, error) || error.value() != 0) {
      there = next;
      continue;
    }
    std::vector<std::string> names;
    for (auto it = fs::directory_iterator(there.empty() ? fs::path(".") : there, error);
         !error && it != fs::directory_iterator() && names.size() < kMostNames; it.increment(error))
      names.push_back(it->path().filename().string());
    // A link to nothing, or a file that has come since
    if (std::find(names.begin(), names.end(), part.string()) != names.end()) return {};
    return {next.string(), suggestion(part.string(), names)};
  }
  return {};
}

}  // namespace

std::string what_is_missing(const std::string& path) {
  const Missing missing = find_missing(path);
  return missing.path.empty() ? "" : "there is no " + shown(missing.path, 400) + missing.suggestion;
}

std::string near_name(const std::string& path) { return find_missing(path).suggestion; }

}  // namespace starling
