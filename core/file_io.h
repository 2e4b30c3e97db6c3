#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

namespace starling {

/// A regular file, open for reading. Opening never waits: a pipe without a writer, a device without an end, a socket and a folder are not
/// opened. Who opens it says so in its own words.
class RegularFile {
 public:
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  /// Why it is not open: "No such file or directory", "it is a pipe, not a regular file"; empty where it is.
  const std::string& fault() const { return fault_; }
  int descriptor() const { return descriptor_; }
  std::uint64_t bytes() const { return bytes_; }
  /// The descriptor, for its new owner to close.
  int release();

 private:
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;  ///< when it was opened
  std::string fault_;
};

/// A file that is wholly there or not at all: written to PATH.tmp, synced and renamed by commit(). Without commit() the temporary file is
/// removed and what PATH held stays. A target that is no regular file (/dev/null, a pipe) is written directly. Every
/// fault is Error(kOutput) that names the file, the reason, and what to do.
class AtomicFile {
 public:
  /// kPast: past the system's cache of files, where the file system can. That takes a third of the processor's time for a file of many MiB
  /// that nobody reads soon, and leaves in memory what was there.
  enum class Cache : std::uint8_t { kThrough, kPast };
  explicit AtomicFile(std::string path, Cache cache = Cache::kThrough);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  [[noreturn]] void refuse(int error) const;
  void write_now(const char* at, std::size_t bytes);
  /// What is in the buffer: whole pages of the disk, or at the end the rest, through the cache.
  void flush();
  void leave_direct();

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::string path_;
  std::string temporary_;  ///< empty: written directly, or committed
  int fd_ = -1;
  std::unique_ptr<char, Free> buffer_;  ///< where it goes past the cache: what is to be written, aligned
  std::size_t used_ = 0;
};

}  // namespace starling
