#include "apps/training/output_folder.h"

#include <fmt/chrono.h>

#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>

#include "apps/training/state/checkpoint.h"
#include "core/console.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/log.h"
#include "core/safetensors.h"

namespace starling {

namespace fs = std::filesystem;

namespace {

std::string default_folder(const std::string& config) {
  const std::string name = fs::path(config).stem().string();
  const std::string base =
      fmt::format("runs/{}-{:%Y%m%d-%H%M%S}", name, fmt::localtime(std::time(nullptr)));
  std::string folder = base;
  std::error_code error;
  fs::create_directories("runs", error);
  // It is made here and now: of two runs that begin in the same second each has its own.
  for (int i = 2; !fs::create_directory(folder, error) && !error; ++i)
    folder = fmt::format("{}-{}", base, i);
  return folder;
}

/// Whether a folder holds anything but the lock.
bool holds_files(const std::string& folder) {
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (it->path().filename() != FolderLock::kName) return true;
  }
  return false;
}

/// Removes what a run that was killed while writing has left; this one has the folder's lock.
void remove_unfinished(const std::string& folder) {
  std::error_code error, ignored;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (is_temporary_name(it->path().filename().string())) fs::remove(it->path(), ignored);
  }
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path)) {
    fail(ExitCode::kOutput, "output",
         "cannot make the folder {}: {}; give a writable place by --output", path,
         error ? error.message() : "something else has that name");
  }
}

}  // namespace

std::pair<std::string, std::int64_t> newest_of_run(const TrainOptions& options) {
  std::string path = options.output;
  if (options.resume != "latest") {
    // --resume DIR continues in DIR, unless --output is given.
    if (!path.empty() && fs::weakly_canonical(path) != fs::weakly_canonical(options.resume)) {
      fail(ExitCode::kUsage, "arguments",
           "--resume {} and --output {} name different folders; a run continues in its own folder: "
           "leave --output out",
           options.resume, path);
    }
    path = options.resume;
  }
  if (path.empty())
    fail(ExitCode::kUsage, "arguments",
         "--resume latest needs --output DIR, the folder to continue in");
  const auto newest = CheckpointFolder(path).newest();
  if (!newest && options.resume != "latest") {
    fail(ExitCode::kUsage, "resume",
         "{} holds no complete checkpoint (checkpoints/step-N/DONE); needed: the output folder of "
         "a run",
         path);
  }
  return {path, newest.value_or(-1)};
}

RunFolder prepare_output_folder(const TrainOptions& options, bool from_memory) {
  RunFolder folder;
  folder.path = options.output;
  folder.resume = !options.resume.empty();
  if (folder.resume) folder.path = newest_of_run(options).first;
  if (folder.path.empty()) folder.path = default_folder(options.config);
  std::error_code error;
  if (fs::exists(folder.path, error) && !fs::is_directory(folder.path, error)) {
    fail(ExitCode::kUsage, "output", "--output {} is a file; needed: a new or empty folder",
         folder.path);
  }
  const bool there = fs::exists(folder.path, error);
  if (!there) make_folder(folder.path);
  folder.lock = FolderLock::take(folder.path, from_memory);
  if (folder.resume) {
    remove_unfinished(folder.path);
    const auto newest = CheckpointFolder(folder.path).newest();
    if (newest) {
      folder.resume_step = *newest;
    } else if (!from_memory) {
      for (const char* ended : {"summary.json", "model.safetensors", "checkpoints/best/DONE"}) {
        if (fs::exists(folder.path + "/" + ended, error))
          fail(
              ExitCode::kUsage, "resume",
              "{} has no complete checkpoint (checkpoints/step-N/DONE) to continue from, but holds "
              "what a run has made ({}); give another --output",
              folder.path, ended);
      }
      folder.resume = false;
      say("no checkpoint in {} yet: starting afresh\n", folder.path);
    }
  } else if (there && holds_files(folder.path)) {
    fail(ExitCode::kUsage, "output",
         "the folder {} is not empty; give another --output, or --resume latest to continue the "
         "run in it",
         folder.path);
  }
  make_folder(folder.path);
  if (!folder.lock && ::access(folder.path.c_str(), W_OK) != 0)
    fail_output("write in", folder.path, errno);
  return folder;
}

}  // namespace starling
