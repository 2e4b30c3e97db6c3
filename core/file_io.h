#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// "there is no runs/frist; did you mean 'first'?": the first folder or file of a path that is not
/// there, with the nearest name of those beside it. Empty where all are there.
std::string what_is_missing(const std::string& path);
/// Its end alone, "; did you mean 'first'?"; empty where none is near.
std::string near_name(const std::string& path);

/// A regular file, open for reading. Opening never waits: a pipe without a writer, a device without
/// an end, a socket and a folder are not opened. Who opens it says so in its own words.
class RegularFile {
 public:
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  /// Why the file is not open: "No such file or directory", "it is a pipe, not a regular file";
  /// empty where it is.
  const std::string& fault() const { return fault_; }
  int descriptor() const { return descriptor_; }
  std::uint64_t bytes() const { return bytes_; }
  /// As stat() has it (st_mode); 0: there is nothing, or it cannot be looked at.
  unsigned kind() const { return kind_; }
  /// The descriptor, for its new owner to close.
  int release();

 private:
  int descriptor_ = -1;
  unsigned kind_ = 0;
  std::uint64_t bytes_ = 0;  ///< when it was opened
  std::string fault_;
};

/// All bytes of a file, or why there are none.
struct FileText {
  std::string text, fault;
};
/// Reads a file of at most `most` bytes. `stream`: one that is no regular file, such as a pipe, is
/// read to its end.
FileText read_file(const std::string& path, std::uint64_t most = UINT64_MAX, bool stream = false);
/// The same of what is left to be read from a descriptor.
FileText read_rest(int descriptor, std::uint64_t most = UINT64_MAX);

/// A file that is wholly there or not at all: written under a temporary name beside it that nobody
/// has, synced and renamed by commit(), with the permissions of the file that it replaces. Without
/// commit() the temporary file is removed and what PATH held stays. A link is followed: what it
/// leads to is written. A target that is no regular file (/dev/null, a pipe), and one of this
/// process's own descriptors (/dev/stdout), is written directly. Every fault is Error(kOutput) that
/// names the file, the reason, and what to do.
class AtomicFile {
 public:
  /// Way through the system's cache of files. kPast: past it, where the file system can. That takes
  /// a third of the processor's time for a file of many MiB that nobody reads soon, and leaves in
  /// memory what was there.
  enum class Cache : std::uint8_t { kThrough, kPast };
  explicit AtomicFile(std::string path, Cache cache = Cache::kThrough);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  /// Has another file take what was written from a byte on; this one ends there. Of a regular file.
  void move_end(std::uint64_t from, AtomicFile& to);
  void commit();

 private:
  [[noreturn]] void refuse(int error) const;
  void write_now(const char* at, std::size_t bytes);
  /// Writes what is in the buffer: whole pages of the disk, or at the end the rest, through the
  /// cache.
  void flush();
  void leave_direct();

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::string path_;       ///< as it was given
  std::string target_;     ///< to which its links lead
  std::string temporary_;  ///< empty: written directly, or committed
  int fd_ = -1;
  /// What is to be written, aligned, where it goes past the cache
  std::unique_ptr<char, Free> buffer_;
  std::size_t used_ = 0;
};

/// What a program writes into a file that its user names: what such files begin with, one of these,
/// and what they are called.
struct OutputKind {
  std::vector<std::string_view> begins;
  const char* what;  ///< "table of samples"
};
/// The file that an option names, opened before hours go into what it is to hold. A file that is
/// there stays as it is, by Error(kUsage), unless it is empty or of the kind itself: the option
/// that was meant may have been another, or the file.
std::unique_ptr<AtomicFile> open_output(std::string_view option, const std::string& path,
                                        const OutputKind& kind);

/// Removes the temporary files of all that are being written: for a process that ends without their
/// destructors.
void remove_unfinished_files();

/// Whether a file's name is that of an AtomicFile's temporary file, which a process that was killed
/// leaves; `target`: of which file.
bool is_temporary_name(std::string_view name, std::string* target = nullptr);

}  // namespace starling
