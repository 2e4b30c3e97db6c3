#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/files.h"
#include "core/file_io.h"

namespace starling {

// A shard is one file of many pictures, which starling-prepare writes and the data set `shards`
// maps:
//
//   ShardPrefix | the pictures' bytes, one after another | zeros up to a multiple of 8, entries,
//   names | ShardFooter
//
// Each byte is covered by a checksum (zlib's crc32): the footer's own, the table's in the footer,
// each picture's in the table. Numbers are little endian.

constexpr std::uint32_t kShardVersion = 1;

/// The format of the pictures in a shard.
enum class ShardKind : std::uint32_t {
  kFiles = 0,  ///< encoded JPEG or PNG
  kRaw = 1     ///< rows of RGB pixels, without gaps
};

/// How shards were made and from which pictures; files of one data set have equal settings.
struct ShardSettings {
  ShardKind kind = ShardKind::kFiles;
  std::uint32_t size = 0;     ///< larger pictures were resized to this shorter side; 0: not resized
  std::uint32_t quality = 0;  ///< of JPEG; 0: not re-encoded, or raw pixels
  std::uint32_t interpolation = 0;  ///< filter for resizing
  /// Source pictures of a shard; the last of a split may have fewer
  std::uint32_t pictures = 0;
  std::uint32_t source = 0;  ///< checksum of the source files' names and sizes
  std::uint64_t max_pixels = 0;
  friend bool operator==(const ShardSettings&, const ShardSettings&) = default;
};

struct ShardPrefix {
  std::array<char, 8> magic{'S', 't', 'a', 'r', 'S', 'h', 'r', 'd'};
  std::uint32_t version = kShardVersion, zero = 0;
  friend bool operator==(const ShardPrefix&, const ShardPrefix&) = default;
};

struct ShardEntry {
  std::uint64_t at = 0;  ///< offset in the file
  std::uint32_t bytes = 0, checksum = 0;
  std::uint32_t height = 0, width = 0;  ///< as displayed, after any rotation
  std::uint32_t label = 0;
  std::uint32_t name_end = 0;  ///< in the names; the start is the previous record's end
};

struct ShardFooter {
  ShardSettings settings;
  std::uint32_t split = 0;                 ///< 0: train, 1: val
  std::uint32_t number = 0;                ///< within the split
  std::uint32_t records = 0, skipped = 0;  ///< pictures; those that could not be decoded
  std::uint64_t table_at = 0;              ///< end of the pictures' bytes
  std::uint64_t bytes = 0;                 ///< of the whole file
  std::uint32_t table_checksum = 0;        ///< of the bytes between the pictures and the footer
  std::uint32_t checksum = 0;              ///< of the footer, computed with this field 0
};
static_assert(sizeof(ShardPrefix) == 16 && sizeof(ShardEntry) == 32 && sizeof(ShardFooter) == 72);

constexpr std::array<const char*, 2> kShardSplits{"train", "val"};
/// "train-00017.shard"
std::string shard_name(std::uint32_t split, std::uint32_t number);

/// A mapped shard. Errors are Error(kUsage) with the file, and the record and picture's name if a
/// record is bad.
class ShardFile {
 public:
  /// Reads the header and footer only. Rejects other kinds of files, other versions and truncated
  /// files.
  explicit ShardFile(const std::string& path);

  const std::string& path() const { return map_.path(); }
  const ShardFooter& footer() const { return footer_; }
  std::int64_t records() const { return footer_.records; }
  /// Verifies the table's checksum, once; the functions below call it.
  void check_table() const;
  const ShardEntry& entry(std::int64_t record) const;
  /// The picture's path below train/ or val/.
  std::string name(std::int64_t record) const;
  /// "DEST/train-00000.shard: record 3 (ant/c.png)"
  std::string title(std::int64_t record) const;
  /// A picture's bytes, loaded into memory first unless `resident` says that they are.
  std::span<const std::uint8_t> bytes(std::int64_t record, bool resident = false) const;
  /// Starts prefetching a record's bytes. Returns whether they are already in memory.
  bool will_read(std::int64_t record) const;
  void verify(std::int64_t record) const;

 private:
  /// Loads the accessed part of the table with checked reads, since accessing a mapped file that
  /// was truncated meanwhile would kill the process.
  void bring_table(const void* part, std::size_t bytes) const;
  MappedFile map_;
  ShardFooter footer_;
  mutable std::atomic<bool> table_checked_{false};
  const ShardEntry* entries_ = nullptr;
  const char* names_ = nullptr;
};

/// Writes a shard, under a temporary name until commit(). Errors are Error(kOutput).
class ShardWriter {
 public:
  ShardWriter(const std::string& folder, const ShardSettings& settings, std::uint32_t split,
              std::uint32_t number);
  struct Picture {
    std::span<const std::uint8_t> bytes;
    std::uint32_t checksum = 0;  ///< of these bytes
    std::int64_t height = 0, width = 0, label = 0;
    std::string_view name;
  };
  void add(const Picture& picture);
  /// Counts a picture that could not be decoded.
  void skip() { ++footer_.skipped; }
  void commit();

 private:
  AtomicFile file_;
  ShardFooter footer_;
  std::uint64_t at_ = 0;
  std::vector<ShardEntry> entries_;
  std::string names_;
};

/// DEST/shards.index: the list of shards, and where classes begin. Details of single pictures are
/// in the shards.
struct ShardIndex {
  struct Shard {
    std::uint64_t bytes = 0;
    std::uint32_t records = 0, skipped = 0;
    std::uint32_t footer_checksum = 0, zero = 0;
  };
  ShardSettings settings;
  std::vector<std::string> classes;
  /// Shards of train/ and val/; the latter is empty if there is no val/
  std::array<std::vector<Shard>, 2> shards;
  /// The number of each class's first record, and the total
  std::array<std::vector<std::int64_t>, 2> first;

  std::int64_t records(std::size_t split) const {
    return first[split].empty() ? 0 : first[split].back();
  }
  std::int64_t skipped() const;
};

/// "DEST/shards.index"
std::string shard_index_path(const std::string& folder);
bool has_shard_index(const std::string& folder);
/// Errors are Error(kUsage) with the file.
ShardIndex read_shard_index(const std::string& folder);
/// The file's bytes.
std::string shard_index_text(const ShardIndex& index);
/// Error(kUsage) if a shard is not the one described in the index.
void check_belongs(const ShardFile& file, const ShardIndex& index, std::size_t split,
                   std::size_t number);

/// The mapped shards of one split. Thread-safe. Errors are Error(kUsage) with file and record.
class ShardSet {
 public:
  /// Opens all files, reading only their headers and footers.
  ShardSet(const std::string& folder, const ShardIndex& index, std::size_t split);

  std::int64_t records() const { return starts_.back(); }
  struct Place {
    const ShardFile* file;
    std::int64_t record;  ///< within the file
  };
  Place place(std::int64_t record) const;
  /// A picture's bytes. Verifies the checksum when this process reads it for the first time.
  std::span<const std::uint8_t> bytes(std::int64_t record) const;
  /// Starts prefetching these records in the order of the file, so that the disk can schedule all
  /// of them. Errors are reported when a record is read.
  void will_read(std::span<const std::int64_t> records) const;

 private:
  std::vector<std::unique_ptr<ShardFile>> files_;
  std::vector<std::int64_t> starts_;  ///< the number of each file's first record, and the total
  mutable std::vector<std::atomic<bool>> verified_;  ///< by record
  mutable std::vector<std::atomic<bool>>
      resident_;  ///< records found in memory by will_read(), until they are read
};

}  // namespace starling
