#include "apps/data/files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#if __has_include(<zstd.h>)
#define STARLING_ZSTD
#include <zstd.h>
#endif

#include "core/error.h"
#include "core/file_io.h"
#include "core/mapped_files.h"
#include "core/text.h"

namespace starling {
namespace {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// The start of the first page of a range of a file, and the number of bytes from there to its end.
std::pair<std::size_t, std::size_t> pages_of(std::size_t begin, std::size_t count) {
  const std::size_t first = begin / page_bytes() * page_bytes();
  return {first, begin + count - first};
}

[[noreturn]] void unreadable(const std::string& path) {
  fail(ExitCode::kUsage, "data", "cannot read {}: {}", path, std::strerror(errno));
}
[[noreturn]] void damaged(const std::string& path, const char* reason) {
  fail(ExitCode::kUsage, "data", "{} is damaged or cut short ({}); fetch the file again", path,
       reason);
}

using Source = std::function<std::size_t(std::uint8_t*, std::size_t)>;

/// zlib, which also reads uncompressed files.
Source gzip_source(RegularFile& file, const std::string& path) {
  const std::shared_ptr<gzFile_s> packed(::gzdopen(file.descriptor(), "rb"), ::gzclose);
  if (!packed) throw std::bad_alloc();
  file.release();
  ::gzbuffer(packed.get(), 256 * 1024);
  return [packed, path](std::uint8_t* to, std::size_t count) {
    const int got = ::gzread(packed.get(), to, static_cast<unsigned>(count));
    if (got == static_cast<int>(count)) return count;
    // At the end of an intact file the code is Z_OK or Z_STREAM_END; truncated or damaged archives
    // give another.
    int code = Z_OK;
    const char* reason = ::gzerror(packed.get(), &code);
    if (code == Z_ERRNO) unreadable(path);
    if (code != Z_OK && code != Z_STREAM_END)
      damaged(path, code == Z_BUF_ERROR ? "unexpected end of the gzip stream" : reason);
    return static_cast<std::size_t>(got);
  };
}

#ifdef STARLING_ZSTD
Source zstd_source(RegularFile& file, const std::string& path) {
  const std::shared_ptr<ZSTD_DStream> stream(::ZSTD_createDStream(), ::ZSTD_freeDStream);
  const std::shared_ptr<std::FILE> packed(::fdopen(file.descriptor(), "rb"), [](std::FILE* closed) {
    if (closed) std::fclose(closed);
  });
  if (!stream || !packed) throw std::bad_alloc();
  file.release();
  std::vector<std::uint8_t> bytes(::ZSTD_DStreamInSize());
  return [=, in = ZSTD_inBuffer{}, within = false, full = false](std::uint8_t* to,
                                                                 std::size_t count) mutable {
    ZSTD_outBuffer out{to, count, 0};
    while (out.pos < out.size) {
      if (in.pos == in.size && !full) {
        in = {bytes.data(), std::fread(bytes.data(), 1, bytes.size(), packed.get()), 0};
        if (std::ferror(packed.get())) unreadable(path);
        if (in.size == 0 && within) damaged(path, "unexpected end of the zstd stream");
        if (in.size == 0) break;
      }
      const std::size_t left = ::ZSTD_decompressStream(stream.get(), &out, &in);
      if (::ZSTD_isError(left)) damaged(path, ::ZSTD_getErrorName(left));
      within = left > 0;
      full = within && out.pos == out.size;  // then the decoder may have more output
    }
    return out.pos;
  };
}
#else
Source zstd_source(RegularFile&, const std::string& path) {
  fail(ExitCode::kUsage, "data",
       "{} is packed by zstd, which this build is without; install libzstd-dev and build again, "
       "or unpack it: zstd -d",
       path);
}
#endif

}  // namespace

bool file_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error);
}

std::vector<std::string> files_of(const std::vector<std::string>& paths, const IsWanted& wanted,
                                  const std::string& lacks) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error, ignored;
    std::vector<std::string> found;
    const bool folder = fs::is_directory(path, ignored);
    if (folder) {
      fs::recursive_directory_iterator it(path, error);
      for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
        if (!wanted(*it)) {
          it.disable_recursion_pending();
        } else if (it->is_regular_file(ignored)) {
          found.push_back(it->path().string());
        }
      }
      if (error)
        fail(ExitCode::kUsage, "data", "{} cannot be read: {}", shown(path, 200), error.message());
    } else if (fs::exists(path, ignored)) {
      found.push_back(path);
    } else {
      ::glob_t matches{};
      ::glob(path.c_str(), 0, nullptr, &matches);
      std::copy_if(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc, std::back_inserter(found),
                   file_exists);
      ::globfree(&matches);
    }
    if (found.empty())
      fail(ExitCode::kUsage, "data", "cannot open {}: {}", shown(path, 200),
           folder ? lacks
           : path.find_first_of("*?[") != path.npos
               ? "no file has such a name"
               : "No such file or directory" + near_name(path));
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::uint32_t checksum_of(std::span<const std::uint8_t> bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(::crc32_z(before, bytes.data(), bytes.size()));
}

MappedFile::MappedFile(const std::string& path, Pages pages) : path_(path) {
  const RegularFile file(path);
  if (!file.fault().empty())
    fail(ExitCode::kUsage, "data", "cannot open {}: {}", path, file.fault());
  const auto size = static_cast<std::size_t>(file.bytes());
  // Map all pages now: samples are read in random order, and a page fault for each page would take
  // longer than processing the image.
  const int flags = MAP_SHARED | (pages == Pages::kAll ? MAP_POPULATE : 0);
  void* memory = size > 0 ? ::mmap(nullptr, size, PROT_READ, flags, file.descriptor(), 0) : nullptr;
  if (memory == MAP_FAILED)
    fail(ExitCode::kUsage, "data", "cannot map {} ({} bytes): {}", path, size,
         std::strerror(errno));
  data_ = {static_cast<const std::uint8_t*>(memory), Unmap{size}};
  if (data_) note_mapping(data_.get(), size, path_);
  if (data_ && pages == Pages::kNamed) ::madvise(memory, size, MADV_RANDOM);
  if (data_ && pages == Pages::kInOrder) ::madvise(memory, size, MADV_SEQUENTIAL);
  // For files of other owners mincore() reports all pages as resident, to hide what the owner
  // reads.
  struct stat status {};
  knows_residency_ = (::fstat(file.descriptor(), &status) == 0 && status.st_uid == ::geteuid()) ||
                     ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

bool MappedFile::in_memory(std::size_t begin, std::size_t count) const {
  if (!knows_residency_) return false;
  const auto [first, length] = pages_of(begin, count);
  thread_local std::vector<unsigned char> pages;
  pages.resize((length + page_bytes() - 1) / page_bytes());
  if (::mincore(const_cast<std::uint8_t*>(data_.get()) + first, length, pages.data()) != 0)
    return false;
  return std::all_of(pages.begin(), pages.end(),
                     [](unsigned char page) { return (page & 1) != 0; });
}

bool MappedFile::will_read(std::size_t begin, std::size_t count) const {
  if (count == 0 || in_memory(begin, count)) return true;
  const auto [first, length] = pages_of(begin, count);
  ::madvise(const_cast<std::uint8_t*>(data_.get()) + first, length, MADV_WILLNEED);
  return false;
}

void MappedFile::bring(std::size_t begin, std::size_t count) const {
  if (count == 0 || in_memory(begin, count)) return;
  const auto [first, length] = pages_of(begin, count);
  std::uint8_t* const from = const_cast<std::uint8_t*>(data_.get()) + first;
  ::madvise(from, length, MADV_WILLNEED);  // one call instead of a fault per page
#ifdef MADV_POPULATE_READ
  while (::madvise(from, length, MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) return;  // Linux before 5.14 lacks it; page faults load the pages later
    fail(ExitCode::kUsage, "data",
         "{}: bytes {} to {} cannot be read ({}): the file was shortened, or its disk is failing",
         path_, begin, begin + count, errno == EFAULT ? "bus error" : std::strerror(errno));
  }
#endif
}

void MappedFile::Unmap::operator()(const std::uint8_t* data) const {
  forget_mapping(data);
  ::munmap(const_cast<std::uint8_t*>(data), bytes);
}

PackedFile::PackedFile(std::string path) : path_(std::move(path)) {
  RegularFile file(path_);
  if (!file.fault().empty())
    fail(ExitCode::kUsage, "data", "cannot open {}: {}", path_, file.fault());
  std::array<char, 4> first{};
  const ssize_t got = ::pread(file.descriptor(), first.data(), first.size(), 0);
  const std::string_view begin(first.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  const bool gzip = begin.starts_with("\x1f\x8b"), zstd = begin == "\x28\xb5\x2f\xfd";
  packed_ = gzip || zstd;
  for (const auto& [end, is] : {std::pair(".gz", gzip), {".zst", zstd}}) {
    if (path_.ends_with(end) && !is && !begin.empty())
      fail(ExitCode::kUsage, "data", "{} is not packed as its name says; name it without {}", path_,
           end);
  }
  source_ = zstd ? zstd_source(file, path_) : gzip_source(file, path_);
}

std::vector<std::uint8_t> PackedFile::read(std::uint64_t count) {
  constexpr std::uint64_t kChunk = 4 << 20;
  std::vector<std::uint8_t> bytes;
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t wanted = std::min(kChunk, count - done);
    bytes.resize(static_cast<std::size_t>(done + wanted));
    const std::size_t got = source_(bytes.data() + done, static_cast<std::size_t>(wanted));
    done += got;
    bytes.resize(static_cast<std::size_t>(done));
    if (got < wanted) break;
  }
  return bytes;
}

}  // namespace starling
