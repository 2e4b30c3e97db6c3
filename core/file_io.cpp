#include "core/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/safetensors.h"
#include "core/text.h"

namespace starling {

namespace {

std::string_view remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "free some space, or choose another folder";
    case EFBIG: return "raise the limit of file sizes (ulimit -f), or choose another folder";
    case EACCES:
    case EPERM:
    case EROFS: return "make the folder writable, or choose another one";
    case ENOENT:
    case ENOTDIR: return "its folder must exist; choose another one";
    case EISDIR: return "it is a folder; move it away, or choose another name";
    case ENAMETOOLONG: return "choose a shorter name";
    default: return "check the disk, or choose another folder";
  }
}

/// What a file is that is no regular one.
std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "folder";
  if (S_ISFIFO(mode)) return "pipe";
  if (S_ISSOCK(mode)) return "socket";
  return "device";
}

constexpr std::size_t kPage = 4096;       // what disks, and memory for them, are aligned to
constexpr std::size_t kBuffer = 1 << 20;  // written at once

}  // namespace

RegularFile::RegularFile(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    fault_ = "the name holds a zero byte";
    return;
  }
  // Looked at before it is opened, as some devices do something when they are; and after it, as another may lie there by then.
  struct stat status {};
  bool found = ::stat(path.c_str(), &status) == 0;
  if (found && S_ISREG(status.st_mode)) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    found = descriptor_ >= 0 && ::fstat(descriptor_, &status) == 0;
  }
  if (!found) {
    fault_ = std::generic_category().message(errno);
  } else if (!S_ISREG(status.st_mode)) {
    fault_ = fmt::format("it is a {}, not a regular file", kind_of(status.st_mode));
  } else {
    bytes_ = static_cast<std::uint64_t>(status.st_size);
  }
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int RegularFile::release() { return std::exchange(descriptor_, -1); }

AtomicFile::AtomicFile(std::string path, Cache cache) : path_(std::move(path)) {
  if (path_.empty() || path_.find('\0') != std::string::npos) refuse(ENOENT);
  struct stat status {};
  const bool there = ::stat(path_.c_str(), &status) == 0;
  if (there && S_ISDIR(status.st_mode)) refuse(EISDIR);
  const bool direct = there && !S_ISREG(status.st_mode);
  if (!direct) temporary_ = path_ + ".tmp";
  fd_ = ::open(direct ? path_.c_str() : temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    const int error = errno;
    temporary_.clear();
    refuse(error);
  }
  if (direct || cache == Cache::kThrough) return;
  // Set afterwards: a file system that cannot do it, such as one in memory, refuses just that.
  const int flags = ::fcntl(fd_, F_GETFL);
  if (flags < 0 || ::fcntl(fd_, F_SETFL, flags | O_DIRECT) != 0) return;
  buffer_.reset(static_cast<char*>(std::aligned_alloc(kPage, kBuffer)));
  if (!buffer_) leave_direct();
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::refuse(int error) const {
  fail(ExitCode::kOutput, "output", {.file = shown(path_, 200)}, "could not be written: {}; {}", std::generic_category().message(error),
       remedy(error));
}

void AtomicFile::leave_direct() {
  const int flags = ::fcntl(fd_, F_GETFL);
  if (flags >= 0) ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  if (!buffer_) return write_now(at, bytes);
  while (bytes > 0) {
    const std::size_t count = std::min(bytes, kBuffer - used_);
    std::memcpy(buffer_.get() + used_, at, count);
    used_ += count;
    at += count;
    bytes -= count;
    if (used_ == kBuffer) flush();
  }
}

void AtomicFile::flush() {
  if (used_ % kPage != 0) leave_direct();
  write_now(buffer_.get(), used_);
  used_ = 0;
}

void AtomicFile::write_now(const char* at, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t count = ::write(fd_, at, std::min<std::size_t>(bytes, std::size_t{1} << 30));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EINVAL && (::fcntl(fd_, F_GETFL) & O_DIRECT) != 0) {
      leave_direct();  // it took the flag and cannot do it, or not with this alignment
      continue;
    }
    if (count < 0) refuse(errno);
    if (count == 0) refuse(ENOSPC);
    at += count;
    bytes -= static_cast<std::size_t>(count);
    if (bytes > 0 && count % static_cast<ssize_t>(kPage) != 0) leave_direct();
  }
}

void AtomicFile::commit() {
  if (buffer_) flush();
  // Devices and pipes cannot be synced, which is no fault of theirs.
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP) refuse(errno);
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0 && errno != EINTR) refuse(errno);
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) refuse(errno);
  temporary_.clear();
  // The new name must survive a crash too; a file system that cannot sync folders has done what it can.
  const std::size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
  const int folder_fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd >= 0) {
    ::fsync(folder_fd);
    ::close(folder_fd);
  }
}

void write_file_atomically(const std::string& path, const void* data, std::size_t bytes) {
  AtomicFile file(path);
  file.write(data, bytes);
  file.commit();
}

}  // namespace starling
