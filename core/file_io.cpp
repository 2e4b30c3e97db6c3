#include "core/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/registry.h"
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

constexpr std::string_view kTemporary = ".tmp";  // behind '.' and eight hexadecimal digits
constexpr std::size_t kDigits = 8;

/// The folder that holds it, with a slash at its end; "" where none is named.
std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

/// The descriptor of this process's own that a path means; -1: none.
int own_descriptor(const std::string& path) {
  for (const std::string_view folder : {"/proc/self/fd/", "/dev/fd/", "/proc/thread-self/fd/"}) {
    int number = -1;
    const char* end = path.data() + path.size();
    if (path.starts_with(folder) &&
        std::from_chars(path.data() + folder.size(), end, number).ptr == end)
      return number;
  }
  return -1;
}

/// The path to which a path's links lead, also one to nothing; a descriptor of this process is not
/// followed further.
std::string followed(std::string path) {
  std::array<char, PATH_MAX> to{};
  for (int links = 0; links < 40 && own_descriptor(path) < 0; ++links) {
    const ssize_t length = ::readlink(path.c_str(), to.data(), to.size());
    if (length <= 0) break;  // no link
    const std::string target(to.data(), static_cast<std::size_t>(length));
    path = target.starts_with('/') ? target : folder_of(path) + target;
  }
  return path;
}

/// The temporary files in use.
struct Unfinished {
  std::mutex mutex;
  std::set<std::string> names;
};
Unfinished& unfinished() {
  static Unfinished files;
  return files;
}
void note_unfinished(const std::string& name, bool there) {
  const std::lock_guard lock(unfinished().mutex);
  if (there)
    unfinished().names.insert(name);
  else
    unfinished().names.erase(name);
}

constexpr std::size_t kPage = 4096;       // what disks, and memory for them, are aligned to
constexpr std::size_t kBuffer = 1 << 20;  // written at once

/// The first missing component of a path, and the most similar name in its folder.
std::pair<std::string, std::string> find_missing(const std::string& path) {
  constexpr std::size_t kMostNames = 10'000;  // a folder of data may have millions
  std::filesystem::path there;
  for (const std::filesystem::path& part : std::filesystem::path(path)) {
    const std::filesystem::path next = there / part;
    std::error_code error;
    if (part.empty() || std::filesystem::exists(next, error) || error.value() != 0) {
      there = next;
      continue;
    }
    std::vector<std::string> names;
    for (auto it = std::filesystem::directory_iterator(
             there.empty() ? std::filesystem::path(".") : there, error);
         !error && it != std::filesystem::directory_iterator() && names.size() < kMostNames;
         it.increment(error))
      names.push_back(it->path().filename().string());
    // A link to nothing, or a file that has come since
    if (std::find(names.begin(), names.end(), part.string()) != names.end()) return {};
    return {next.string(), suggestion(part.string(), names)};
  }
  return {};
}

}  // namespace

std::string what_is_missing(const std::string& path) {
  const auto [missing, near] = find_missing(path);
  if (missing.empty()) return "";
  // Of a relative path that is looked for in the wrong folder nothing else tells.
  std::error_code error;
  const bool here = near.empty() && missing.find('/') == std::string::npos;
  return "there is no " + shown(missing, 400) +
         (here ? " in " + shown(std::filesystem::current_path(error).string(), 400) : near);
}

std::string near_name(const std::string& path) { return find_missing(path).second; }

RegularFile::RegularFile(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    fault_ = "the name holds a zero byte";
    return;
  }
  // Looked at before it is opened, as some devices do something when they are; and after it, as
  // another may lie there by then.
  struct stat status {};
  bool found = ::stat(path.c_str(), &status) == 0;
  if (found) kind_ = status.st_mode;
  if (found && S_ISREG(status.st_mode)) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    found = descriptor_ >= 0 && ::fstat(descriptor_, &status) == 0;
  }
  if (!found) {
    const bool missing = errno == ENOENT;
    fault_ = std::generic_category().message(errno);
    if (missing) fault_ += near_name(path);
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

FileText read_file(const std::string& path, std::uint64_t most, bool stream) {
  RegularFile file(path);
  int descriptor = file.release();
  if (descriptor < 0 && stream && file.kind() != 0 && !S_ISDIR(file.kind()))
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {{}, file.fault()};
  FileText result = read_rest(descriptor, most);
  ::close(descriptor);
  return result;
}

FileText read_rest(int descriptor, std::uint64_t most) {
  FileText file;
  std::vector<char> part(kBuffer);
  for (;;) {
    const ssize_t got = ::read(descriptor, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) return file;
    if (got < 0) return {{}, std::generic_category().message(errno)};
    file.text.append(part.data(), static_cast<std::size_t>(got));
    if (file.text.size() > most) return {{}, fmt::format("it is larger than {} MiB", most >> 20)};
  }
}

std::unique_ptr<AtomicFile> open_output(std::string_view option, const std::string& path,
                                        const OutputKind& kind) {
  const RegularFile there(path);
  const bool unread = !there.fault().empty() && S_ISREG(there.kind());
  const auto begins = [&](std::string_view with) {
    std::string begin(with.size(), '\0');
    return ::pread(there.descriptor(), begin.data(), begin.size(), 0) ==
               static_cast<ssize_t>(begin.size()) &&
           begin == with;
  };
  const bool own = own_descriptor(followed(path)) >= 0;  // append to what it already has
  if (unread ||
      (!own && there.bytes() > 0 && std::none_of(kind.begins.begin(), kind.begins.end(), begins))) {
    fail(ExitCode::kUsage, "arguments",
         "{} {}: the file is there already and holds no {}; name another one, or remove it", option,
         shown(path, 200), kind.what);
  }
  return std::make_unique<AtomicFile>(path);
}

AtomicFile::AtomicFile(std::string path, Cache cache) : path_(std::move(path)) {
  if (path_.empty() || path_.find('\0') != std::string::npos) refuse(ENOENT);
  target_ = followed(path_);
  struct stat status {};
  const bool there = ::stat(target_.c_str(), &status) == 0;
  if (!there && errno == ELOOP) refuse(ELOOP);
  if (there && S_ISDIR(status.st_mode)) refuse(EISDIR);
  const int own = own_descriptor(target_);
  const bool direct = own >= 0 || (there && !S_ISREG(status.st_mode));
  if (own >= 0) {
    fd_ = ::fcntl(own, F_DUPFD_CLOEXEC, 0);
  } else if (direct) {
    fd_ = ::open(target_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  } else {
    std::random_device random;
    for (int tries = 0; fd_ < 0 && (tries == 0 || (errno == EEXIST && tries < 100)); ++tries) {
      temporary_ = fmt::format("{}.{:0{}x}{}", target_, random(), kDigits, kTemporary);
      fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
  }
  if (fd_ < 0) {
    const int error = errno;
    temporary_.clear();
    refuse(error);
  }
  if (!direct) note_unfinished(temporary_, true);
  if (there && !direct) (void)::fchmod(fd_, status.st_mode & 07777);
  if (direct || cache == Cache::kThrough) return;
  // Set afterwards: a file system that cannot do it, such as one in memory, refuses just that.
  const int flags = ::fcntl(fd_, F_GETFL);
  if (flags < 0 || ::fcntl(fd_, F_SETFL, flags | O_DIRECT) != 0) return;
  buffer_.reset(static_cast<char*>(std::aligned_alloc(kPage, kBuffer)));
  if (!buffer_) leave_direct();
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  note_unfinished(temporary_, false);
}

void AtomicFile::refuse(int error) const {
  fail(ExitCode::kOutput, "output", {.file = shown(path_, 200)}, "could not be written: {}; {}",
       std::generic_category().message(error), remedy(error));
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

void AtomicFile::move_end(std::uint64_t from, AtomicFile& to) {
  if (buffer_) flush();
  leave_direct();
  std::vector<char> part(kBuffer);
  for (std::uint64_t at = from;;) {
    const ssize_t count = ::pread(fd_, part.data(), part.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(errno);
    if (count == 0) break;
    to.write(part.data(), static_cast<std::size_t>(count));
    at += static_cast<std::uint64_t>(count);
  }
  if (::ftruncate(fd_, static_cast<off_t>(from)) != 0) refuse(errno);
}

void AtomicFile::commit() {
  if (buffer_) flush();
  // Devices and pipes cannot be synced, which is no fault of theirs.
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP) refuse(errno);
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0 && errno != EINTR) refuse(errno);
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) refuse(errno);
  note_unfinished(temporary_, false);
  temporary_.clear();
  // The new name must survive a crash too; a file system that cannot sync folders has done what it
  // can.
  const int folder_fd =
      ::open((folder_of(target_) + ".").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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

void remove_unfinished_files() {
  const std::lock_guard lock(unfinished().mutex);
  for (const std::string& name : unfinished().names) ::unlink(name.c_str());
}

bool is_temporary_name(std::string_view name, std::string* target) {
  const std::size_t end = kTemporary.size() + kDigits + 1;
  if (name.size() <= end || !name.ends_with(kTemporary) || name[name.size() - end] != '.')
    return false;
  const std::string_view digits = name.substr(name.size() - end + 1, kDigits);
  if (digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) return false;
  if (target) *target = name.substr(0, name.size() - end);
  return true;
}

}  // namespace starling
