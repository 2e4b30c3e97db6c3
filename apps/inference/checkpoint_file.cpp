#include "apps/inference/checkpoint_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/text.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOldDone = "step ";
constexpr std::string_view kOpening = "{\n", kBefore = " \"checksum\": \"", kAfter = "\",\n";
constexpr std::size_t kDigits = 16;
constexpr std::array<std::string_view, 4> kKeys = {"files", "metric", "step", "value"};

/// Removes the checksum line from the text, and returns its value, if there is one.
std::string take_checksum(std::string& text) {
  if (!text.starts_with(std::string(kOpening).append(kBefore))) return "";
  const std::size_t digits = kOpening.size() + kBefore.size(), after = digits + kDigits;
  if (text.size() < after || text.compare(after, kAfter.size(), kAfter) != 0) return "";
  std::string found = text.substr(digits, kDigits);
  text.erase(kOpening.size(), after + kAfter.size() - kOpening.size());
  return found;
}

}  // namespace

std::string rank_file_name(int rank) { return fmt::format("rank-{}.safetensors", rank); }

std::string checkpoint_path(const std::string& run, std::int64_t step) {
  return fmt::format("{}/checkpoints/step-{}", run, step);
}

std::string run_of_checkpoint(const std::string& path) {
  const fs::path folder =
      fs::path(path).has_filename() ? fs::path(path) : fs::path(path).parent_path();
  const fs::path above = folder.parent_path();
  std::error_code error;
  if (above.filename() != "checkpoints" || !fs::exists(folder / "DONE", error)) return "";
  return above.has_parent_path() ? above.parent_path().string() : ".";
}

std::vector<CheckpointEntry> checkpoints_in(const std::string& checkpoints) {
  constexpr std::string_view kPrefix = "step-";
  std::vector<CheckpointEntry> entries;
  std::error_code error;
  for (auto it = fs::directory_iterator(checkpoints, error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    CheckpointEntry entry;
    const char* end = name.data() + name.size();
    const auto [stop, code] = std::from_chars(name.data() + kPrefix.size(), end, entry.step);
    if (code != std::errc{} || stop != end || entry.step < 0 ||
        name != fmt::format("step-{}", entry.step))
      continue;
    std::error_code ignored;
    if (!it->is_directory(ignored)) continue;
    entry.complete = fs::is_regular_file(it->path() / "DONE", ignored);
    entries.push_back(entry);
  }
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step < b.step; });
  return entries;
}

std::map<std::string, int> shared_tensors(const SafetensorsFile& file, const std::string& source) {
  std::map<std::string, int> shared;
  const auto entry = file.metadata.find(kSharedTensors);
  if (entry == file.metadata.end()) return shared;
  try {
    nlohmann::json::parse(entry->second).get_to(shared);
  } catch (const nlohmann::json::exception&) {
    fail(ExitCode::kUsage, "checkpoint", {.file = source},
         "its metadata's entry {} does not say in which rank's file each tensor is; the file is "
         "damaged",
         kSharedTensors);
  }
  return shared;
}

CheckpointFile::CheckpointFile(std::string folder, std::optional<std::int64_t> step)
    : folder_(std::move(folder)) {
  const std::string path = folder_ + "/DONE";
  const auto text = done_in(folder_);
  if (!text)
    fail(ExitCode::kUsage, "checkpoint",
         "{} holds no complete checkpoint (its file DONE is missing)", folder_);
  if (text->starts_with(kOldDone)) {
    std::from_chars(text->data() + kOldDone.size(), text->data() + text->size(), step_);
    checked_ = *text != fmt::format("step {}\n", step.value_or(step_));
  }
  if (!checked_) {
    std::error_code error;
    while (fs::exists(rank_file(ranks_), error)) ++ranks_;
    return;
  }
  const nlohmann::json json = parse_done(path, *text);
  try {
    step_ = json.at("step").get<std::int64_t>();
    // Older versions may have written something else for a digest: reading that file says so
    for (const auto& [name, digest] : json.at("files").get_ref<const nlohmann::json::object_t&>()) {
      ++ranks_;
      if (auto known = digest_in(digest)) files_[name] = std::move(*known);
    }
    if (step_ == step.value_or(step_)) return;
  } catch (const nlohmann::json::exception&) {
  }
  fail(ExitCode::kUsage, "checkpoint", {.file = path},
       "does not say what files belong to {}; the file is damaged",
       step ? fmt::format("step {}", *step) : "it");
}

std::string CheckpointFile::rank_file(int rank) const {
  return folder_ + "/" + rank_file_name(rank);
}

SafetensorsFile CheckpointFile::read_file(
    int rank, const std::function<bool(const std::string&)>& left_out) const {
  if (!checked_) return read_safetensors(rank_file(rank), nullptr, left_out);
  const auto written = files_.find(rank_file_name(rank));
  if (written == files_.end()) {
    fail(ExitCode::kUsage, "checkpoint", {.file = rank_file(rank)},
         "{}/DONE has no digest of it; the checkpoint is damaged", folder_);
  }
  return read_safetensors(rank_file(rank), &written->second, left_out);
}

SafetensorsFile CheckpointFile::read(
    int rank, const std::function<bool(const std::string&)>& left_out) const {
  SafetensorsFile state = read_file(rank, left_out);
  std::map<int, std::set<std::string>> elsewhere;
  for (auto& [name, holder] : shared_tensors(state, rank_file(rank))) {
    if (!left_out || !left_out(name)) elsewhere[holder].insert(name);
  }
  state.metadata.erase(kSharedTensors);
  for (const auto& [rank_of_file, shared] : elsewhere) {
    const int holder = rank_of_file;  // clang's lambdas take no structured bindings
    const std::set<std::string>& names = shared;
    SafetensorsFile other =
        read_file(holder, [&](const std::string& name) { return !names.contains(name); });
    for (const std::string& name : names) {
      if (!other.tensors.contains(name)) {
        fail(ExitCode::kUsage, "checkpoint", {.file = rank_file(holder)},
             "lacks the tensor {}, which {} shares with it; the checkpoint is damaged", name,
             rank_file_name(rank));
      }
    }
    state.tensors.merge(other.tensors);
  }
  return state;
}

std::string done_text(const nlohmann::json& object) {
  std::string text = object.dump(1) + "\n";
  text.insert(kOpening.size(), fmt::format("{}{}{}", kBefore, checksum(text), kAfter));
  return text;
}

nlohmann::json parse_done(const std::string& path, const std::string& text) {
  const auto refuse = [&](std::string_view fault) {
    fail(ExitCode::kUsage, "checkpoint", {.file = path}, "{}; the file is damaged", fault);
  };
  std::string rest = text;
  const std::string written = take_checksum(rest);
  if (!written.empty()) {
    const std::string found = checksum(rest);
    if (found != written) {
      refuse(fmt::format("its bytes are not those that were written (checksum {}, was {})", found,
                         shown(written, kDigits)));
    }
  }
  // The parser takes a zero byte for the text's end.
  if (rest.find('\0') != std::string::npos) refuse("it has bytes that no text has");
  nlohmann::json json = nlohmann::json::parse(rest, nullptr, false);
  if (!json.is_object()) refuse("it is no JSON object");
  if (!written.empty()) return json;
  // A damaged name of the checksum must not make it one of an older version.
  for (const auto& entry : json.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), entry.key()) == kKeys.end()) {
      refuse(fmt::format("'{}' is no key of it", shown(entry.key(), 60)));
    }
  }
  return json;
}

std::optional<std::string> done_in(const std::string& folder) {
  FileText file = read_file(folder + "/DONE");
  return file.fault.empty() ? std::optional(std::move(file.text)) : std::nullopt;
}

nlohmann::json json_of(const FileDigest& digest) {
  return {{"bytes", digest.bytes}, {"header", digest.header}, {"tensors", digest.tensors}};
}

std::optional<FileDigest> digest_in(const nlohmann::json& json) {
  try {
    return FileDigest{json.at("bytes").get<std::uint64_t>(), json.at("header").get<std::string>(),
                      json.at("tensors").get<std::map<std::string, std::string>>()};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace starling
