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
#include <vector>

#include "core/error.h"
#include "core/file_io.h"
#include "core/mapped_files.h"

namespace starling {
namespace {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Pages of a part of a file: their first byte, and how many bytes from there on.
std::pair<std::size_t, std::size_t> pages_of(std::size_t begin, std::size_t count) {
  const std::size_t first = begin / page_bytes() * page_bytes();
  return {first, begin + count - first};
}

}  // namespace

bool file_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error);
}

std::uint32_t checksum_of(std::span<const std::uint8_t> bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(::crc32_z(before, bytes.data(), bytes.size()));
}

MappedFile::MappedFile(const std::string& path, Pages pages) : path_(path) {
  const RegularFile file(path);
  if (!file.fault().empty())
    fail(ExitCode::kUsage, "data", "cannot open {}: {}", path, file.fault());
  size_ = static_cast<std::size_t>(file.bytes());
  // Populated at once: samples are read in random order, and a fault for each page would cost more
  // than the image's work.
  const int flags = MAP_SHARED | (pages == Pages::kAll ? MAP_POPULATE : 0);
  void* memory =
      size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, flags, file.descriptor(), 0) : nullptr;
  if (memory == MAP_FAILED)
    fail(ExitCode::kUsage, "data", "cannot map {} ({} bytes): {}", path, size_,
         std::strerror(errno));
  data_ = static_cast<const std::uint8_t*>(memory);
  if (data_) note_mapping(data_, size_, path_);
  // What lies around a named part is not wanted.
  if (data_ && pages == Pages::kNamed) ::madvise(memory, size_, MADV_RANDOM);
  if (data_ && pages == Pages::kInOrder) ::madvise(memory, size_, MADV_SEQUENTIAL);
  // To others the system says that all pages are in memory, lest they watch what the owner reads.
  struct stat status {};
  knows_memory_ = (::fstat(file.descriptor(), &status) == 0 && status.st_uid == ::geteuid()) ||
                  ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

bool MappedFile::in_memory(std::size_t begin, std::size_t count) const {
  if (!knows_memory_) return false;
  const auto [first, length] = pages_of(begin, count);
  thread_local std::vector<unsigned char> pages;
  pages.resize((length + page_bytes() - 1) / page_bytes());
  if (::mincore(const_cast<std::uint8_t*>(data_) + first, length, pages.data()) != 0) return false;
  return std::all_of(pages.begin(), pages.end(),
                     [](unsigned char page) { return (page & 1) != 0; });
}

bool MappedFile::will_read(std::size_t begin, std::size_t count) const {
  if (count == 0 || in_memory(begin, count)) return true;
  const auto [first, length] = pages_of(begin, count);
  ::madvise(const_cast<std::uint8_t*>(data_) + first, length, MADV_WILLNEED);
  return false;
}

void MappedFile::bring(std::size_t begin, std::size_t count) const {
  if (count == 0 || in_memory(begin, count)) return;
  const auto [first, length] = pages_of(begin, count);
  std::uint8_t* const from = const_cast<std::uint8_t*>(data_) + first;
  ::madvise(from, length, MADV_WILLNEED);  // all at once instead of page by page
#ifdef MADV_POPULATE_READ
  while (::madvise(from, length, MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) return;  // a system before Linux 5.14: touching brings them
    fail(ExitCode::kUsage, "data",
         "{}: bytes {} to {} cannot be read ({}): the file was shortened, or its disk is failing",
         path_, begin, begin + count, errno == EFAULT ? "bus error" : std::strerror(errno));
  }
#endif
}

MappedFile::~MappedFile() {
  if (!data_) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      knows_memory_(other.knows_memory_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(knows_memory_, other.knows_memory_);
  return *this;
}

PlainOrGzipReader::PlainOrGzipReader(std::string path) : path_(std::move(path)) {
  RegularFile file(path_);
  if (!file.fault().empty())
    fail(ExitCode::kUsage, "data", "cannot open {}: {}", path_, file.fault());
  file_ = ::gzdopen(file.descriptor(), "rb");
  if (!file_) fail(ExitCode::kUsage, "data", "cannot open {}: out of memory", path_);
  file.release();
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
      // At the plain end of a file the code is Z_OK or Z_STREAM_END; an archive that stops early or
      // is damaged says so here.
      int code = Z_OK;
      const char* reason = ::gzerror(file, &code);
      if (code == Z_ERRNO)
        fail(ExitCode::kUsage, "data", "cannot read {}: {}", path_, std::strerror(errno));
      if (code != Z_OK && code != Z_STREAM_END) {
        fail(ExitCode::kUsage, "data", "{} is damaged or cut short ({}); fetch the file again",
             path_, code == Z_BUF_ERROR ? "unexpected end of the gzip stream" : reason);
      }
      break;
    }
  }
  bytes.resize(static_cast<std::size_t>(done));
  return bytes;
}

}  // namespace starling
