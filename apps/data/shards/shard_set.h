#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/data/shards/shard_file.h"

namespace starling {

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
  /// One bit per record, set and cleared atomically.
  class RecordBits {
   public:
    explicit RecordBits(std::int64_t records)
        : words_(static_cast<std::size_t>(records / 64 + 1)) {}
    bool has(std::int64_t record) const {
      return (word(record).load(std::memory_order_relaxed) & bit(record)) != 0;
    }
    void set(std::int64_t record) { word(record).fetch_or(bit(record), std::memory_order_relaxed); }
    /// Clears a bit; returns whether it was set.
    bool test_and_clear(std::int64_t record) {
      return has(record) &&
             (word(record).fetch_and(~bit(record), std::memory_order_relaxed) & bit(record)) != 0;
    }

   private:
    static std::uint64_t bit(std::int64_t record) { return std::uint64_t{1} << (record % 64); }
    const std::atomic<std::uint64_t>& word(std::int64_t record) const {
      return words_[static_cast<std::size_t>(record / 64)];
    }
    std::atomic<std::uint64_t>& word(std::int64_t record) {
      return words_[static_cast<std::size_t>(record / 64)];
    }
    std::vector<std::atomic<std::uint64_t>> words_;
  };
  mutable RecordBits verified_;
  mutable RecordBits resident_;  ///< records found in memory by will_read(), until they are read
};

}  // namespace starling
