#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// A file mapped for reading. Ranks of one host share its pages. Errors are Error(kUsage) with file
/// and the system's reason.
class MappedFile {
 public:
  /// What to prefetch: the whole file, only what will_read() and bring() specify, or sequentially.
  enum class Pages : std::uint8_t { kAll, kNamed, kInOrder };
  explicit MappedFile(const std::string& path, Pages pages = Pages::kAll);

  const std::string& path() const { return path_; }
  std::span<const std::uint8_t> bytes() const { return {data_.get(), data_.get_deleter().bytes}; }
  /// Starts prefetching a part of the file. Returns whether it is already in memory.
  bool will_read(std::size_t begin, std::size_t count) const;
  /// Reads a part into memory. Error(kUsage) on failure, e.g. if another program has truncated the
  /// file.
  void bring(std::size_t begin, std::size_t count) const;

 private:
  bool in_memory(std::size_t begin, std::size_t count) const;
  struct Unmap {
    std::size_t bytes;
    void operator()(const std::uint8_t* data) const;
  };
  std::string path_;
  std::unique_ptr<const std::uint8_t, Unmap> data_;
  bool knows_residency_ = false;  ///< whether mincore() reports which pages are in memory
};

/// Reads a file sequentially, decompressing gzip and zstd (recognised by their first bytes).
/// Error(kUsage) with the file for damaged or truncated archives, and for other files named like
/// one.
class PackedFile {
 public:
  explicit PackedFile(std::string path);
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  bool packed() const { return packed_; }
  /// Reads up to `count` bytes; fewer only at the end. Allocates only what is read, since `count`
  /// may come from a damaged header.
  std::vector<std::uint8_t> read(std::uint64_t count);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool packed_ = false;
  /// Writes up to this number of bytes, fewer only at the end; returns their number.
  std::function<std::size_t(std::uint8_t*, std::size_t)> source_;
};

/// Whether `path` exists and is not a folder.
bool file_exists(const std::string& path);

/// A filter for entries of a folder: files to include, and folders to descend into.
using IsWanted = std::function<bool(const std::filesystem::directory_entry&)>;
/// Expands paths: files, folders (their wanted files, sorted by name) and patterns (train_*.bin).
/// Error(kUsage) if one has no files; `lacks` describes what a folder is missing.
std::vector<std::string> files_of(const std::vector<std::string>& paths, const IsWanted& wanted,
                                  const std::string& lacks);

/// zlib's crc32, optionally continuing that of preceding bytes.
std::uint32_t checksum_of(std::span<const std::uint8_t> bytes, std::uint32_t before = 0);
template <class T>
std::span<const std::uint8_t> bytes_of(const T& value) {
  return {reinterpret_cast<const std::uint8_t*>(&value), sizeof value};
}
inline std::span<const std::uint8_t> text_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace starling
