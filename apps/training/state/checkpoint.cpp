#include "apps/training/state/checkpoint.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/training/output/output_file.h"
#include "comm/agreement.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/log.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

/// DONE goes first: an interrupted removal leaves an incomplete checkpoint, never a damaged one.
std::error_code remove_checkpoint(const std::string& folder) {
  std::error_code error;
  if (fs::remove(folder + "/DONE", error)) sync_folder(folder);
  if (!error) fs::remove_all(folder, error);
  return error;
}

nlohmann::json json_of(const std::vector<FileDigest>& files) {
  nlohmann::json json = nlohmann::json::object();
  for (std::size_t rank = 0; rank < files.size(); ++rank)
    json[rank_file_name(static_cast<int>(rank))] = json_of(files[rank]);
  return json;
}

/// Reads a best checkpoint's DONE, and checks that the files that it lists have their lengths.
CheckpointFolder::Best read_best(const std::string& folder) {
  const std::string path = folder + "/DONE";
  const auto text = done_in(folder);
  if (!text)
    fail(ExitCode::kUsage, "checkpoint", {.file = path},
         "is missing or cannot be read; the best checkpoint is damaged");
  const nlohmann::json json = parse_done(path, *text);
  CheckpointFolder::Best best;
  std::map<std::string, std::uint64_t> sizes;
  try {
    best = {json.at("step").get<std::int64_t>(), json.at("metric").get<std::string>(),
            json.at("value").get<double>()};
    if (const auto files = json.find("files"); files != json.end()) {
      for (const auto& [name, digest] : files->items())
        sizes[name] = digest.at("bytes").get<std::uint64_t>();
    }
  } catch (const nlohmann::json::exception&) {
    fail(ExitCode::kUsage, "checkpoint", {.file = path},
         "does not say what was best, and when; the file is damaged");
  }
  for (const auto& [name, bytes] : sizes) {
    std::error_code error;
    const std::string file = folder + "/" + name;
    const std::uintmax_t found = fs::is_regular_file(file, error) ? fs::file_size(file, error) : 0;
    if (found != bytes || error) {
      fail(ExitCode::kUsage, "checkpoint", {.file = file},
           "has {} bytes, {} were written; the file is damaged",
           error ? "no" : fmt::to_string(found), bytes);
    }
  }
  return best;
}

void rename_folder(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail_output("rename to " + to + " the folder", from, error.value());
}

void remove_folder(const std::string& folder) {
  if (const std::error_code error = remove_checkpoint(folder))
    fail_output("empty the folder", folder, error.value());
}

constexpr int kNiceness = 5;

}  // namespace

void CheckpointFolder::begin_folder(const std::string& folder) {
  const std::filesystem::path above = std::filesystem::path(folder).parent_path();
  if (std::error_code error; !std::filesystem::is_directory(above.parent_path(), error))
    fail_moved(above.parent_path());
  remove_folder(folder);
  make_folders(folder);
}

FileDigest CheckpointFolder::write_rank(const std::string& path, const SafetensorsFile& file) {
  const auto shared = shared_tensors(file, path);
  return write_safetensors(path, file,
                           [&](const std::string& name) { return shared.contains(name); });
}

std::string CheckpointFolder::rename_damaged(const std::string& folder) {
  const std::string aside = folder + ".damaged";
  std::error_code error;
  fs::remove_all(aside, error);
  fs::rename(folder, aside, error);
  return error ? error.message() : std::string();
}

void CheckpointFolder::complete(std::int64_t step, int keep,
                                const std::vector<FileDigest>& files) const {
  const std::string folder = step_folder(step), checkpoints = folder_ + "/checkpoints";
  // A file's name is on the disk once it is written (AtomicFile): those of the ranks before DONE
  // is, and DONE before anything older goes.
  const std::string done = done_text({{"step", step}, {"files", json_of(files)}});
  write_file_atomically(folder + "/DONE", done.data(), done.size());
  sync_folder(checkpoints);

  int left = std::max(keep, 1) - 1;
  const auto entries = checkpoints_in(checkpoints);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->step == step || (!entry->complete && entry->step > step)) continue;
    if (entry->complete && left-- > 0) continue;
    if (const std::error_code error = remove_checkpoint(step_folder(entry->step))) {
      log::warning("cannot remove the old checkpoint {}: {}", step_folder(entry->step),
                   error.message());
    }
  }
}

std::optional<std::int64_t> CheckpointFolder::newest(std::int64_t before) const {
  const auto entries = checkpoints_in(folder_ + "/checkpoints");
  const auto found = std::find_if(
      entries.rbegin(), entries.rend(),
      [&](const CheckpointEntry& entry) { return entry.complete && entry.step < before; });
  return found == entries.rend() ? std::nullopt : std::optional(found->step);
}

void CheckpointFolder::complete_best(const Best& best, const std::vector<FileDigest>& files) const {
  const std::string done = done_text({{"step", best.step},
                                      {"metric", best.metric},
                                      {"value", best.value},
                                      {"files", json_of(files)}});
  write_file_atomically(new_best_folder() + "/DONE", done.data(), done.size());
  // At every moment one of the two has its DONE; best() looks at both.
  std::error_code error;
  if (fs::exists(best_folder(), error)) {
    remove_folder(old_best_folder());
    rename_folder(best_folder(), old_best_folder());
  }
  rename_folder(new_best_folder(), best_folder());
  sync_folder(folder_ + "/checkpoints");
  if (const std::error_code left = remove_checkpoint(old_best_folder()))
    log::warning("cannot remove {}: {}", old_best_folder(), left.message());
}

std::optional<CheckpointFolder::Best> CheckpointFolder::best() const {
  std::error_code error;
  // Looked at by symlink_status: a link that leads nowhere is something, too.
  if (fs::exists(fs::symlink_status(best_folder(), error))) return read_best(best_folder());
  // The old one is of a run that was killed while replacing it. Without its DONE it is none.
  if (!fs::exists(old_best_folder() + "/DONE", error)) return std::nullopt;
  try {
    return read_best(old_best_folder());
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<FileDigest> all_digests(World& world, const FileDigest& mine) {
  std::vector<FileDigest> digests;
  for (const std::string& text : world.all_gather(json_of(mine).dump()))
    digests.push_back(digest_in(nlohmann::json::parse(text)).value());
  return digests;
}

void share_tensors(World& world, const std::map<std::string, std::string>& sums,
                   SafetensorsFile& state) {
  if (world.size() == 1) return;
  // One checksum of the names, and one of each tensor in their order: few bytes to send. Of what a
  // replica's first rank has for this one, that rank sends it.
  const std::map<std::string, int> elsewhere = shared_tensors(state, "this rank's state");
  const std::size_t digits = checksum({}).size();
  std::map<std::string, std::string> known = sums;
  for (const auto& [name, holder] : elsewhere) known[name] = std::string(digits, '-');
  std::string names, mine;
  for (const auto& [name, sum] : known) names += name + '\0', mine += sum;
  const std::vector<std::string> all = world.all_gather(checksum(names) + mine);
  const auto part = [&](int rank, std::size_t i) {
    return std::string_view(all[static_cast<std::size_t>(rank)]).substr(i * digits, digits);
  };
  std::map<std::string, int> shared;
  std::size_t i = 0;
  for (const auto& [name, own] : known) {
    ++i;
    const auto held = elsewhere.find(name);
    const std::string_view sum = held == elsewhere.end() ? own : part(held->second, i);
    for (int other = 0; other < world.rank() && !shared.contains(name); ++other) {
      if (part(other, 0) == part(world.rank(), 0) && part(other, i) == sum) shared[name] = other;
    }
  }
  if (!shared.empty()) state.metadata[kSharedTensors] = nlohmann::json(shared).dump();
}

CheckpointWriter::CheckpointWriter(World& world, CheckpointFolder folder, int keep,
                                   std::function<void(std::int64_t)> done)
    : world_(world), folder_(std::move(folder)), keep_(keep), done_(std::move(done)) {}

CheckpointWriter::~CheckpointWriter() {
  if (work_.valid()) work_.wait();
}

void CheckpointWriter::run(const std::function<void()>& work) {
  try {
    work_ = std::async(std::launch::async, [work] {
      // A thread of this niceness takes a quarter of a core. Linux keeps it per thread.
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
      work();
    });
  } catch (const std::system_error&) {  // no thread to be had: then the step waits
    std::promise<void> result;
    work_ = result.get_future();
    try {
      work();
      result.set_value();
    } catch (...) {
      result.set_exception(std::current_exception());
    }
  }
}

void CheckpointWriter::start(std::int64_t step, SafetensorsFile state) {
  finish();
  on_all_ranks(world_, [&] {
    if (world_.rank() == 0) folder_.begin(step);
  });
  step_ = step;
  state_ = std::move(state);
  ++number_;
  if (world_.size() == 1) return write_file();
  part_ = Part::kSums;
  run([this] { sums_ = checksums_of(state_); });
}

void CheckpointWriter::write_file() {
  part_ = Part::kFiles;
  run([this] { digest_ = folder_.write(step_, world_.rank(), state_); });
}

void CheckpointWriter::advance() {
  const Part ended = std::exchange(part_, Part::kNone);
  ++number_;
  on_all_ranks(world_, [&] {
    if (work_.valid()) work_.get();
  });
  if (ended == Part::kSums) {
    share_tensors(world_, sums_, state_);
    return write_file();
  }
  if (ended == Part::kCompletion) {
    done_(step_);
    return;
  }
  if (ended != Part::kFiles) return;
  digests_ = all_digests(world_, digest_);
  part_ = Part::kCompletion;
  if (world_.rank() == 0) run([this] { folder_.complete(step_, keep_, digests_); });
}

SafetensorsFile CheckpointWriter::take_used() {
  return part_ == Part::kSums || part_ == Part::kFiles ? SafetensorsFile()
                                                       : std::exchange(state_, {});
}

}  // namespace starling
