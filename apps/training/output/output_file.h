#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace starling {

/// A file that grows at its end. What append() was given is in the file (in the system's hands)
/// when it returns; where it cannot be, as on a full disk, nothing of it stays, and Error(kOutput)
/// names the file, the reason and the remedy.
class OutputFile {
 public:
  /// Opens or creates `path` and continues it, or empties it first.
  OutputFile(std::string path, bool empty);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(std::string_view bytes);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_;
};

/// Throws Error(kOutput) "cannot VERB PATH: reason; remedy" for an errno.
[[noreturn]] void fail_output(std::string_view verb, const std::string& path, int reason);

/// Makes a folder and those above it.
void make_folders(const std::string& path);
/// Brings a folder's entries (names made, renamed, removed) to the disk.
void sync_folder(const std::string& path);

}  // namespace starling
