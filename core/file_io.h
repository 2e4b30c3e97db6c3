#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// "there is no runs/frist; did you mean 'first'?": the first missing component of a path, and the
/// most similar existing name. Empty if the path exists.
std::string what_is_missing(const std::string& path);
/// Only "; did you mean 'first'?"; empty if no name is similar.
std::string near_name(const std::string& path);

/// A regular file, open for reading. Pipes, devices, sockets and folders are not opened, so that
/// opening never blocks; the caller reports that.
class RegularFile {
 public:
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  /// Why the file is not open: "No such file or directory", "it is a pipe, not a regular file";
  /// empty if it is.
  const std::string& fault() const { return fault_; }
  int descriptor() const { return descriptor_; }
  std::uint64_t bytes() const { return bytes_; }
  /// stat()'s st_mode; 0 if stat() fails.
  unsigned kind() const { return kind_; }
  /// Transfers the descriptor to the caller, who must close it.
  int release();

 private:
  int descriptor_ = -1;
  unsigned kind_ = 0;
  std::uint64_t bytes_ = 0;  ///< when it was opened
  std::string fault_;
};

/// The contents of a file, or why it could not be read.
struct FileText {
  std::string text, fault;
};
/// Reads a file of at most `most` bytes. `stream`: also reads files that are not regular, such as
/// pipes.
FileText read_file(const std::string& path, std::uint64_t most = UINT64_MAX, bool stream = false);
/// Reads the rest of an open file.
FileText read_rest(int descriptor, std::uint64_t most = UINT64_MAX);

/// Writes a file atomically: under a unique temporary name in the same folder, synced and renamed
/// by commit(), with the permissions of the file that it replaces. Without commit() the temporary
/// file is removed and PATH is unchanged. Symbolic links are followed. Targets that are not regular
/// files
/// (/dev/null, a pipe), and this process's own descriptors (/dev/stdout), are written directly.
/// Failures are Error(kOutput) with file, reason and remedy.
class AtomicFile {
 public:
  /// Whether to use the system's page cache. kPast: direct I/O if the file system supports it. For
  /// large files that are not read soon it takes a third of the processor time, and does not evict
  /// other files from the cache.
  enum class Cache : std::uint8_t { kThrough, kPast };
  explicit AtomicFile(std::string path, Cache cache = Cache::kThrough);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  /// Moves everything from byte `from` on to another file. For regular files only.
  void move_end(std::uint64_t from, AtomicFile& to);
  void commit();

 private:
  [[noreturn]] void refuse(int error) const;
  void write_now(const char* at, std::size_t bytes);
  /// Writes the buffer: whole disk pages directly, the rest at the end through the cache.
  void flush();
  void leave_direct();

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::string path_;       ///< as given
  std::string target_;     ///< with links resolved
  std::string temporary_;  ///< empty: written directly, or committed
  int fd_ = -1;
  /// Aligned buffer for direct I/O
  std::unique_ptr<char, Free> buffer_;
  std::size_t used_ = 0;
};

/// A kind of output file: how such files can begin, and its name for errors.
struct OutputKind {
  std::vector<std::string_view> begins;
  const char* what;  ///< "table of samples"
};
/// Opens the output file of a command-line option, before the long computation of its contents. An
/// existing file is overwritten only if it is empty or of the same kind; otherwise Error(kUsage),
/// since the user may have confused options or files.
std::unique_ptr<AtomicFile> open_output(std::string_view option, const std::string& path,
                                        const OutputKind& kind);

/// Removes the temporary files of all open AtomicFiles, for a process that exits without running
/// destructors.
void remove_unfinished_files();

/// Whether this is the name of an AtomicFile's temporary file, which a killed process leaves
/// behind. `target`: set to the name of the file that was being written.
bool is_temporary_name(std::string_view name, std::string* target = nullptr);

}  // namespace starling
