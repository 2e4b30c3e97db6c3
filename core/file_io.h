#pragma once

#include <cstddef>
#include <string>

namespace starling {

/// A file that is wholly there or not at all: written to PATH.tmp, synced and renamed by commit(). Without commit() the temporary file is
/// removed and what PATH held stays. A target that is no regular file (/dev/null, a pipe) is written directly. Every
/// fault is Error(kOutput) that names the file, the reason, and what to do.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  [[noreturn]] void refuse(int error) const;
  std::string path_;
  std::string temporary_;  ///< empty: written directly, or committed
  int fd_ = -1;
};

}  // namespace starling
