#include "apps/training/state/data_contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

constexpr const char* kContents = "data";  // the entry of a checkpoint's metadata

/// Contents as a text says them. A number that it does not say is -1.
struct Contents {
  std::int64_t train = -1, test = -1, classes = -1;
  std::vector<std::string> names;  ///< of classes
  std::map<std::string, std::uint32_t> checksums;
};

Contents parsed_contents(const std::string& text, const std::string& source) {
  try {
    const auto json = nlohmann::json::parse(text);
    Contents contents;
    contents.train = json.value("train_samples", contents.train);
    contents.test = json.value("test_samples", contents.test);
    contents.classes = json.value("classes", contents.classes);
    contents.names = json.value("class_names", contents.names);
    contents.checksums = json.value("checksums", contents.checksums);
    return contents;
  } catch (const nlohmann::json::exception&) {
    fail(ExitCode::kUsage, "resume", {.file = source}, "the entry '{}' is damaged: {}", kContents,
         shown(text));
  }
}

}  // namespace

std::string contents_of(const DatasetInfo& data) {
  const nlohmann::json json{{"train_samples", data.train_samples},
                            {"test_samples", data.test_samples},
                            {"classes", data.classes},
                            {"class_names", data.class_names},
                            {"checksums", data.checksums}};
  // Folders may have names that are no UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string data_path_of(const nlohmann::json& resolved) {
  const auto path = nlohmann::json::json_pointer("/data/path");
  return resolved.contains(path) && resolved[path].is_string() ? resolved[path].get<std::string>()
                                                               : "";
}

std::optional<ContentsDifference> difference_of(const std::string& mine, const std::string& other,
                                                const std::string& source) {
  if (mine == other) return std::nullopt;
  const Contents a = parsed_contents(mine, source), b = parsed_contents(other, source);
  const std::pair<const char*, std::pair<std::int64_t, std::int64_t>> numbers[] = {
      {"classes", {a.classes, b.classes}},
      {"training samples", {a.train, b.train}},
      {"test samples", {a.test, b.test}}};
  for (const auto& [what, values] : numbers) {
    const auto [own, others] = values;
    if (own >= 0 && others >= 0 && own != others)
      return ContentsDifference{fmt::format("{} {}", own, what), std::to_string(others)};
  }
  for (std::size_t k = 0; k < std::min(a.names.size(), b.names.size()); ++k) {
    if (a.names[k] != b.names[k])
      return ContentsDifference{fmt::format("{} as class {}", told_apart(a.names[k]), k),
                                told_apart(b.names[k])};
  }
  for (const auto& [what, checksum] : a.checksums) {
    const auto it = b.checksums.find(what);
    if (it != b.checksums.end() && it->second != checksum)
      return ContentsDifference{fmt::format("{} of checksum {:08x}", what, checksum),
                                fmt::format("as many of checksum {:08x}", it->second)};
  }
  return std::nullopt;
}

void save_contents(const DatasetInfo& data, SafetensorsFile& file) {
  file.metadata[kContents] = contents_of(data);
}

bool has_contents(const SafetensorsFile& file) { return file.metadata.count(kContents) != 0; }

void check_same_contents(const SafetensorsFile& file, const std::string& source,
                         const DatasetInfo& data, const std::string& path) {
  const auto entry = file.metadata.find(kContents);
  if (entry == file.metadata.end()) return;
  const auto difference = difference_of(contents_of(data), entry->second, source);
  if (!difference) return;
  fail(ExitCode::kUsage, "resume", {.file = source},
       "the data set{} has {}, at the checkpoint it had {}; go on with the same data, or start "
       "another output folder",
       path.empty() ? "" : " in " + path, difference->mine, difference->other);
}

}  // namespace starling
