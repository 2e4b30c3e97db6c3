#include "apps/training/output/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "core/error.h"
#include "core/host.h"
#include "core/text.h"

namespace starling {
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

bool still_there(const std::string& path, int descriptor) {
  struct stat named {
  }, opened{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(descriptor, &opened) == 0 &&
         named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

}  // namespace

std::unique_ptr<FolderLock> FolderLock::take(const std::string& folder) {
  const std::string path = folder + "/" + kName;
  while (true) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) return nullptr;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const bool held = errno == EWOULDBLOCK;
      const std::string holder = held ? holder_of(descriptor) : std::string();
      ::close(descriptor);
      if (!held) return nullptr;
      fail(ExitCode::kUsage, "output", {.file = shown(folder, 200)},
           "{} is writing in this folder; wait for its end, or give another --output", holder);
    }
    // Whoever held it may have removed the file between the two calls: then this is a lock of
    // nothing.
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
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace starling
