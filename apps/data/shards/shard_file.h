#pragma once

#include <array>
#include <atomic>
#include <cstdint>
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

/// What pictures are in a shard.
enum class ShardKind : std::uint32_t {
  kFiles = 0,  ///< JPEG or PNG files
  kRaw = 1     ///< rows of red, green and blue, without gaps
};

/// How shards were made and of which pictures: two files belong together where these are equal.
struct ShardSettings {
  std::uint32_t kind = 0;
  std::uint32_t size = 0;           ///< shorter side of larger pictures; 0: as it was
  std::uint32_t quality = 0;        ///< of JPEG; 0: of raw pixels
  std::uint32_t interpolation = 0;  ///< by which larger pictures were resized
  /// Of the source that a shard is made of, but for a split's last
  std::uint32_t pictures = 0;
  std::uint32_t source = 0;  ///< checksum of the source's names and sizes of files
  std::uint64_t max_pixels = 0;
  friend bool operator==(const ShardSettings&, const ShardSettings&) = default;
};

struct ShardPrefix {
  std::array<char, 8> magic{'S', 't', 'a', 'r', 'S', 'h', 'r', 'd'};
  std::uint32_t version = kShardVersion, zero = 0;
  friend bool operator==(const ShardPrefix&, const ShardPrefix&) = default;
};

struct ShardEntry {
  std::uint64_t at = 0;  ///< in the file
  std::uint32_t bytes = 0, checksum = 0;
  std::uint32_t height = 0, width = 0;  ///< as it is seen
  std::uint32_t label = 0;
  std::uint32_t name_end = 0;  ///< in the names; it begins where the one before ends
};

struct ShardFooter {
  ShardSettings settings;
  std::uint32_t split = 0;                 ///< 0: train, 1: val
  std::uint32_t number = 0;                ///< within the split
  std::uint32_t records = 0, skipped = 0;  ///< pictures; those that could not be decoded
  std::uint64_t table_at = 0;              ///< where the pictures' bytes end
  std::uint64_t bytes = 0;                 ///< of the whole file
  std::uint32_t table_checksum = 0;        ///< of all between the pictures and the footer
  std::uint32_t checksum = 0;              ///< of the footer, this being 0
};
static_assert(sizeof(ShardPrefix) == 16 && sizeof(ShardEntry) == 32 && sizeof(ShardFooter) == 72);

constexpr std::array<const char*, 2> kShardSplits{"train", "val"};
/// "train-00017.shard"
std::string shard_name(std::uint32_t split, std::uint32_t number);

/// One shard, mapped. Errors are Error(kUsage) that name the file, and the record with the
/// picture's name where one is wrong.
class ShardFile {
 public:
  /// Reads the two ends alone. Refuses another kind of file, another version and one that is cut
  /// off.
  explicit ShardFile(const std::string& path);

  const std::string& path() const { return map_.path(); }
  const ShardFooter& footer() const { return footer_; }
  std::int64_t records() const { return footer_.records; }
  /// Checks the table, once; the others do so by themselves.
  void check_table() const;
  const ShardEntry& entry(std::int64_t record) const;
  /// The picture's name as it was below train/ or val/.
  std::string name(std::int64_t record) const;
  /// "DEST/train-00000.shard: record 3 (ant/c.png)"
  std::string title(std::int64_t record) const;
  /// A picture's bytes, brought into memory, or known to be there.
  std::span<const std::uint8_t> bytes(std::int64_t record, bool there = false) const;
  /// Has the system begin to read a record's bytes. True: they are in memory already.
  bool will_read(std::int64_t record) const;
  /// Compares the bytes with their checksum.
  void verify(std::int64_t record) const;

 private:
  /// Brings into memory what is looked at of the table, lest a file that is shortened meanwhile
  /// ends the process.
  void bring_table(const void* part, std::size_t bytes) const;
  MappedFile map_;
  ShardFooter footer_;
  mutable std::atomic<bool> table_checked_{false};
  const ShardEntry* entries_ = nullptr;
  const char* names_ = nullptr;
};

/// Writes a shard: under a temporary name until commit(). Errors are Error(kOutput).
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
  /// A picture that could not be decoded.
  void skip() { ++footer_.skipped; }
  void commit();

 private:
  AtomicFile file_;
  ShardFooter footer_;
  std::uint64_t at_ = 0;
  std::vector<ShardEntry> entries_;
  std::string names_;
};

}  // namespace starling
