#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/operations/accesses.h"

namespace starling {

/// A whole file mapped for reading: the ranks of one host share its pages. Errors are Error(kUsage)
/// with the file and the system's reason.
class MappedFile {
 public:
  /// Which pages of a file are brought into memory: all at once, what will_read() and bring() name,
  /// or what is read, and some that follow.
  enum class Pages : std::uint8_t { kAll, kNamed, kInOrder };
  explicit MappedFile(const std::string& path, Pages pages = Pages::kAll);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::uint8_t> bytes() const { return {data_, size_}; }
  /// Has the system begin to read a part of the file, and does not wait for it. True: it is in
  /// memory already.
  bool will_read(std::size_t begin, std::size_t count) const;
  /// Brings a part into memory. Error(kUsage) where that fails, as when another program has
  /// shortened the file meanwhile.
  void bring(std::size_t begin, std::size_t count) const;

 private:
  bool in_memory(std::size_t begin, std::size_t count) const;
  std::string path_;
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  bool knows_memory_ = false;  ///< the system tells which of the file's pages are in memory
};

/// Reads a file front to back: as it is, or unpacked where its first bytes are gzip's or zstd's.
/// Errors (a damaged or cut-off archive, and one that its name alone says it is) are Error(kUsage)
/// that name the file.
class PackedFile {
 public:
  explicit PackedFile(std::string path);
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  bool packed() const { return packed_; }
  /// Reads up to `count` bytes; fewer only at the end. Memory grows with what is read, not with
  /// `count`, which a damaged header may have made up.
  std::vector<std::uint8_t> read(std::uint64_t count);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool packed_ = false;
  /// Writes up to so many bytes, fewer only at the end; how many they are.
  std::function<std::size_t(std::uint8_t*, std::size_t)> source_;
};

/// Whether a file (not a folder) is there.
bool file_exists(const std::string& path);

/// Of what lies in a folder: a file is taken, a folder is looked into.
using IsWanted = std::function<bool(const std::filesystem::directory_entry&)>;
/// The files that paths stand for: a file, what is wanted of a folder by name, or those of a
/// pattern (train_*.bin) by name. Error(kUsage) where one stands for none; `lacks` says what a
/// folder has not then.
std::vector<std::string> files_of(const std::vector<std::string>& paths, const IsWanted& wanted,
                                  const std::string& lacks);

/// The crc32 (zlib's) of bytes, which may go on from that of the bytes before them.
std::uint32_t checksum_of(std::span<const std::uint8_t> bytes, std::uint32_t before = 0);
template <class T>
std::span<const std::uint8_t> bytes_of(const T& value) {
  return {reinterpret_cast<const std::uint8_t*>(&value), sizeof value};
}

}  // namespace starling
