#include "apps/trainer/data/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"

namespace starling {

bool file_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(ExitCode::kUsage, "data", "cannot open {}: {}", path, std::strerror(errno));
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    fail(ExitCode::kUsage, "data", "{} is not a regular file", path);
  }
  size_ = static_cast<std::size_t>(status.st_size);
  // Populated at once: samples are read in random order, and a fault for each page would cost more than the image's work.
  void* memory = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor, 0) : nullptr;
  const int reason = errno;
  ::close(descriptor);
  if (memory == MAP_FAILED) fail(ExitCode::kUsage, "data", "cannot map {} ({} bytes): {}", path, size_, std::strerror(reason));
  data_ = static_cast<const std::uint8_t*>(memory);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

PlainOrGzipReader::PlainOrGzipReader(std::string path) : path_(std::move(path)), file_(::gzopen(path_.c_str(), "rb")) {
  if (!file_) fail(ExitCode::kUsage, "data", "cannot open {}: {}", path_, std::strerror(errno));
  ::gzbuffer(static_cast<gzFile>(file_), 256 * 1024);
}

PlainOrGzipReader::~PlainOrGzipReader() { ::gzclose(static_cast<gzFile>(file_)); }

std::vector<std::uint8_t> PlainOrGzipReader::read(std::uint64_t count) {
  constexpr std::uint64_t kChunk = 4 << 20;
  const auto file = static_cast<gzFile>(file_);
  std::vector<std::uint8_t> bytes;
  std::uint64_t done = 0;
  while (done < count) {
    const std::uint64_t wanted = std::min(kChunk, count - done);
    bytes.resize(static_cast<std::size_t>(done + wanted));
    const int got = ::gzread(file, bytes.data() + done, static_cast<unsigned>(wanted));
    if (got >= 0) done += static_cast<std::uint64_t>(got);
    if (got < 0 || static_cast<std::uint64_t>(got) < wanted) {
      // At the plain end of a file the code is Z_OK or Z_STREAM_END; an archive that stops early or is damaged says so here.
      int code = Z_OK;
      const char* reason = ::gzerror(file, &code);
      if (code == Z_ERRNO) fail(ExitCode::kUsage, "data", "cannot read {}: {}", path_, std::strerror(errno));
      if (code != Z_OK && code != Z_STREAM_END) {
        fail(ExitCode::kUsage, "data", "{} is damaged or cut short ({}); fetch the file again", path_,
             code == Z_BUF_ERROR ? "unexpected end of the gzip stream" : reason);
      }
      break;
    }
  }
  bytes.resize(static_cast<std::size_t>(done));
  return bytes;
}

}  // namespace starling
