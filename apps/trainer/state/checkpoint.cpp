#include "apps/trainer/state/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "apps/trainer/output/output_file.h"
#include "core/error.h"
#include "core/log.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

struct Entry {
  std::int64_t step = 0;
  bool complete = false;
};

/// The step folders of a run, in ascending order of steps. Other names are none of ours and are left alone.
std::vector<Entry> step_folders(const std::string& checkpoints) {
  constexpr std::string_view kPrefix = "step-";
  std::vector<Entry> entries;
  std::error_code error;
  for (auto it = fs::directory_iterator(checkpoints, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    Entry entry;
    const char* end = name.data() + name.size();
    const auto [stop, code] = std::from_chars(name.data() + kPrefix.size(), end, entry.step);
    if (code != std::errc{} || stop != end || entry.step < 0 || name != fmt::format("step-{}", entry.step)) continue;
    std::error_code ignored;
    if (!it->is_directory(ignored)) continue;
    entry.complete = fs::is_regular_file(it->path() / "DONE", ignored);
    entries.push_back(entry);
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.step < b.step; });
  return entries;
}

/// Removes DONE first, so that a removal that is interrupted leaves an incomplete checkpoint and never a damaged one.
std::error_code remove_checkpoint(const std::string& folder) {
  std::error_code error;
  if (fs::remove(folder + "/DONE", error)) sync_folder(folder);
  if (!error) fs::remove_all(folder, error);
  return error;
}

}  // namespace

std::string CheckpointFolder::step_folder(std::int64_t step) const { return fmt::format("{}/checkpoints/step-{}", folder_, step); }

std::string CheckpointFolder::rank_file(std::int64_t step, int rank) const {
  return fmt::format("{}/rank-{}.safetensors", step_folder(step), rank);
}

void CheckpointFolder::begin(std::int64_t step) const {
  const std::string folder = step_folder(step);
  std::error_code error;
  if (fs::exists(folder, error)) error = remove_checkpoint(folder);
  if (error) fail_output("empty the folder", folder, error.value());
  make_folders(folder);
  sync_folder(folder_ + "/checkpoints");
}

void CheckpointFolder::write(std::int64_t step, int rank, const SafetensorsFile& file) const {
  write_safetensors(rank_file(step, rank), file);
}

void CheckpointFolder::complete(std::int64_t step, int keep) const {
  const std::string folder = step_folder(step), checkpoints = folder_ + "/checkpoints";
  // The ranks synced their files; their names must be on the disk before DONE is, and DONE before anything older goes.
  sync_folder(folder);
  const std::string done = fmt::format("step {}\n", step);
  write_file_atomically(folder + "/DONE", done.data(), done.size());
  sync_folder(folder);
  sync_folder(checkpoints);

  int left = std::max(keep, 1) - 1;
  const auto entries = step_folders(checkpoints);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->step == step || (!entry->complete && entry->step > step)) continue;
    if (entry->complete && left-- > 0) continue;
    if (const std::error_code error = remove_checkpoint(step_folder(entry->step))) {
      log::warning("cannot remove the old checkpoint {}: {}", step_folder(entry->step), error.message());
    }
  }
}

std::optional<std::int64_t> CheckpointFolder::newest() const {
  const auto entries = step_folders(folder_ + "/checkpoints");
  const auto found = std::find_if(entries.rbegin(), entries.rend(), [](const Entry& entry) { return entry.complete; });
  return found == entries.rend() ? std::nullopt : std::optional(found->step);
}

SafetensorsFile CheckpointFolder::read(std::int64_t step, int rank) const {
  std::error_code error;
  if (!fs::is_regular_file(step_folder(step) + "/DONE", error)) {
    fail(ExitCode::kUsage, "checkpoint", "{} holds no complete checkpoint (its file DONE is missing)", step_folder(step));
  }
  return read_safetensors(rank_file(step, rank));
}

}  // namespace starling
