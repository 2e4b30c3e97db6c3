#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace starling {

/// A file that grows at its end. What append() was given is in the file when it returns; where it
/// cannot be, nothing of it stays, and Error(kOutput) names the file, the reason and the remedy.
/// Where the file was moved or removed meanwhile, a new one goes on; where its folder was, that is
/// an Error(kOutput) too: another run may write in a folder that has its name now.
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
  int folder_, descriptor_;
};

/// Throws Error(kOutput) "cannot VERB PATH: reason; remedy" for an errno.
[[noreturn]] void fail_output(std::string_view verb, const std::string& path, int reason);

/// The same of a run's folder that is not where it was.
[[noreturn]] void fail_moved(const std::string& folder);

/// Makes a folder and those above it.
void make_folders(const std::string& path);
/// Brings a folder's entries (names made, renamed, removed) to the disk.
void sync_folder(const std::string& path);

/// One run at a time in an output folder: the file `.lock` in it, locked by the process that writes
/// there. The kernel gives the lock back however the process ends.
class FolderLock {
 public:
  /// Takes the lock of a folder that is there. Error(kUsage) that names the holder where another
  /// process has it. Null where the file cannot be made, or where the file system knows no locks.
  /// `of_lost_rank`: it is a rank that this run continues without: ended if it is a process of this
  /// host, else the lock is left to it (null).
  static std::unique_ptr<FolderLock> take(const std::string& folder, bool of_lost_rank = false);
  /// Removes the file, if the folder still has its name.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  static constexpr const char* kName = ".lock";

 private:
  FolderLock(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
};

}  // namespace starling
