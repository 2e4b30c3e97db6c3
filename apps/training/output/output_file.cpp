#include "apps/training/output/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"

namespace starling {

void fail_output(std::string_view verb, const std::string& path, int reason) {
  const char* remedy =
      reason == ENOSPC || reason == EDQUOT ? "free space there, or choose another --output"
      : reason == EFBIG ? "raise the limit on file sizes (ulimit -f), or choose another --output"
                        : "choose another --output, or check its permissions";
  fail(ExitCode::kOutput, "output", "cannot {} {}: {}; {}", verb, path, std::strerror(reason),
       remedy);
}

OutputFile::OutputFile(std::string path, bool empty)
    : path_(std::move(path)),
      descriptor_(::open(path_.c_str(),
                         O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (empty ? O_TRUNC : 0), 0666)) {
  if (descriptor_ < 0) fail_output("open", path_, errno);
}

OutputFile::~OutputFile() { ::close(descriptor_); }

void OutputFile::append(std::string_view bytes) {
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

}  // namespace starling
