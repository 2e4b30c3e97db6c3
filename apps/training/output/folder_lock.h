#pragma once

#include <memory>
#include <string>

namespace starling {

/// One run at a time in an output folder: the file `.lock` in it, locked by the process that writes
/// there, with its host and id as text. The kernel gives the lock back when the process ends,
/// however it ends, so a file that a killed run left means nothing.
class FolderLock {
 public:
  /// Takes the lock of a folder that is there. Error(kUsage) that names the holder where another
  /// process has it. Null where the file cannot be made, or where the file system knows no locks.
  static std::unique_ptr<FolderLock> take(const std::string& folder);
  /// Removes the file.
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
