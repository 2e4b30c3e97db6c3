#include "apps/training/output/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/text.h"

namespace starling {
namespace {

/// Whether a path still leads to what was opened there.
bool still_there(const std::string& path, int descriptor) {
  struct stat named {
  }, opened{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(descriptor, &opened) == 0 &&
         named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

int open_to_append(const std::string& path, bool empty) {
  const int descriptor =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (empty ? O_TRUNC : 0), 0666);
  if (descriptor < 0) fail_output("open", path, errno);
  return descriptor;
}

}  // namespace

void fail_output(std::string_view verb, const std::string& path, int reason) {
  const char* remedy =
      reason == ENOSPC || reason == EDQUOT ? "free space there, or choose another --output"
      : reason == EFBIG ? "raise the limit on file sizes (ulimit -f), or choose another --output"
                        : "choose another --output, or check its permissions";
  fail(ExitCode::kOutput, "output", "cannot {} {}: {}; {}", verb, path, std::strerror(reason),
       remedy);
}

void fail_moved(const std::string& folder) {
  fail(ExitCode::kOutput, "output", {.file = folder},
       "the folder was moved or removed while the run wrote in it; to go on, move it back and pass "
       "--resume");
}

OutputFile::OutputFile(std::string path, bool empty)
    : path_(std::move(path)),
      folder_(::open(folder_of(path_).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
      descriptor_(open_to_append(path_, empty)) {}

OutputFile::~OutputFile() {
  ::close(descriptor_);
  ::close(folder_);
}

void OutputFile::append(std::string_view bytes) {
  const std::string folder = folder_of(path_);
  if (folder_ >= 0 && !still_there(folder, folder_)) fail_moved(folder);
  if (!still_there(path_, descriptor_)) {
    const int other = open_to_append(path_, false);
    ::close(std::exchange(descriptor_, other));
    log::warning("{} was moved or removed: a new file goes on from here", path_);
  }
  struct stat before {};
  const bool known = ::fstat(descriptor_, &before) == 0 && S_ISREG(before.st_mode);
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      const int reason = errno;
      // A torn end is dropped on resume as well
      if (known && ::ftruncate(descriptor_, before.st_size) != 0) errno = 0;
      fail_output("write", path_, reason);
    }
  }
}

void make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_output("make the folder", path, error.value());
}

void sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_output("open the folder", path, errno);
  const int result = ::fsync(descriptor);
  const int reason = errno;
  ::close(descriptor);
  // Some network file systems cannot sync a folder; they keep its entries safe in their own way.
  if (result != 0 && reason != EINVAL && reason != ENOTSUP)
    fail_output("sync the folder", path, reason);
}

namespace {

/// "process 4711 on host a"; the holder writes it a moment after it has the lock.
std::string holder_of(int descriptor) {
  std::array<char, 256> text{};
  for (int i = 0; i < 20; ++i) {
    const ssize_t length = ::pread(descriptor, text.data(), text.size(), 0);
    if (length > 0) return shown({text.data(), static_cast<std::size_t>(length)}, 200);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return "another process";
}

constexpr int kMostLooks = 500;  // for a lock whose holder was killed

/// Kills the process of this host that holds a lock: the one that the file names, if it has the
/// file open. It may be stopped, or hang. Returns whether it did.
bool end_holder(int descriptor, const std::string& holder) {
  int process = 0;
  std::array<char, 256> host{};
  struct stat own {};
  if (std::sscanf(holder.c_str(), "process %d on host %255s", &process, host.data()) != 2 ||
      process <= 0 || process == ::getpid() || host_name() != host.data() ||
      ::fstat(descriptor, &own) != 0)
    return false;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", process), error)) {
    struct stat other {};
    if (::stat(entry.path().c_str(), &other) == 0 && other.st_dev == own.st_dev &&
        other.st_ino == own.st_ino)
      return ::kill(process, SIGKILL) == 0;
  }
  return false;
}

}  // namespace

std::unique_ptr<FolderLock> FolderLock::take(const std::string& folder, bool of_lost_rank) {
  const std::string path = folder + "/" + kName;
  int killed = 0;  // looks since then
  while (true) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) return nullptr;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const bool held = errno == EWOULDBLOCK;
      const std::string holder = held ? holder_of(descriptor) : std::string();
      if (held && of_lost_rank && killed == 0 && end_holder(descriptor, holder)) killed = 1;
      ::close(descriptor);
      if (killed > 0 && killed++ < kMostLooks) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      if (!held || of_lost_rank) return nullptr;
      fail(ExitCode::kUsage, "output", {.file = shown(folder, 200)},
           "{} is writing in this folder; wait for its end, or give another --output", holder);
    }
    // Whoever held it may have removed the file between the two calls.
    if (!still_there(path, descriptor)) {
      ::close(descriptor);
      continue;
    }
    const std::string text = fmt::format("process {} on host {}", ::getpid(), host_name());
    // The folder is locked all the same
    if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, text.data(), text.size(), 0) < 0)
      errno = 0;
    return std::unique_ptr<FolderLock>(new FolderLock(path, descriptor));
  }
}

FolderLock::~FolderLock() {
  if (still_there(path_, descriptor_)) ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace starling
