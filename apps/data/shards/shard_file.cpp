#include "apps/data/shards/shard_file.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "core/error.h"
#include "core/operations/accesses.h"
#include "core/text.h"

static_assert(std::endian::native == std::endian::little, "shards are little endian");

namespace starling {
namespace {

constexpr const char* kAnew =
    "delete the file and call starling-prepare images again, which writes it again";

std::size_t padding_after(std::uint64_t at) { return static_cast<std::size_t>((8 - at % 8) % 8); }

std::uint32_t footer_checksum(ShardFooter footer) {
  footer.checksum = 0;
  return checksum_of(bytes_of(footer));
}

}  // namespace

std::string shard_name(std::uint32_t split, std::uint32_t number) {
  return fmt::format("{}-{:05}.shard", kShardSplits[split], number);
}

ShardFile::ShardFile(const std::string& path) : map_(path, MappedFile::Pages::kNamed) {
  const std::span<const std::uint8_t> all = map_.bytes();
  ShardPrefix prefix;
  if (all.size() >= sizeof prefix) std::memcpy(&prefix, all.data(), sizeof prefix);
  if (all.size() < sizeof prefix || prefix.magic != ShardPrefix{}.magic)
    fail(ExitCode::kUsage, "shards", "{} is no shard by its first bytes; {}", path, kAnew);
  if (prefix.version != kShardVersion) {
    fail(ExitCode::kUsage, "shards",
         "{} is of version {}, this program reads version {}; prepare the pictures again", path,
         prefix.version, kShardVersion);
  }
  if (all.size() < sizeof prefix + sizeof footer_)
    fail(ExitCode::kUsage, "shards", "{} is cut off; {}", path, kAnew);
  std::memcpy(&footer_, all.data() + all.size() - sizeof footer_, sizeof footer_);
  const bool whole = prefix == ShardPrefix{} && footer_.checksum == footer_checksum(footer_) &&
                     footer_.bytes == all.size();
  const std::uint64_t table_end = all.size() - sizeof footer_;
  if (!whole || footer_.split > 1 || footer_.table_at < sizeof prefix ||
      footer_.table_at > table_end ||
      (table_end - footer_.table_at) / sizeof(ShardEntry) < footer_.records) {
    fail(ExitCode::kUsage, "shards", "{} is cut off or damaged at its ends; {}", path, kAnew);
  }
  const std::uint64_t entries_at = footer_.table_at + padding_after(footer_.table_at);
  if (entries_at + footer_.records * sizeof(ShardEntry) > table_end)
    fail(ExitCode::kUsage, "shards", "{} is damaged at its end; {}", path, kAnew);
  entries_ = reinterpret_cast<const ShardEntry*>(all.data() + entries_at);
  names_ = reinterpret_cast<const char*>(entries_ + footer_.records);
}

void ShardFile::check_table() const {
  if (table_checked_.load(std::memory_order_acquire)) return;
  const auto begin = static_cast<std::size_t>(footer_.table_at),
             end = map_.bytes().size() - sizeof footer_;
  map_.will_read(begin, end - begin);
  map_.bring(begin, end - begin);
  bool right = checksum_of(map_.bytes().subspan(begin, end - begin)) == footer_.table_checksum;
  std::uint64_t at = sizeof(ShardPrefix);
  std::uint32_t name_end = 0;
  for (std::int64_t i = 0; right && i < records(); ++i) {
    const ShardEntry& entry = entries_[i];
    right = entry.at == at && entry.bytes <= footer_.table_at - at && entry.name_end >= name_end;
    if (right && footer_.settings.kind == static_cast<std::uint32_t>(ShardKind::kRaw)) {
      const std::uint64_t row = std::uint64_t{3} * entry.width;
      right = row > 0 && entry.height > 0 && entry.bytes % row == 0 &&
              entry.bytes / row == entry.height;
    }
    at += entry.bytes;
    name_end = entry.name_end;
  }
  const auto names =
      static_cast<std::size_t>(reinterpret_cast<const char*>(map_.bytes().data()) + end - names_);
  if (!right || at != footer_.table_at || name_end != names) {
    fail(ExitCode::kUsage, "shards",
         "{}: the table of its {} records is damaged, so none of them can be read; {}", path(),
         records(), kAnew);
  }
  table_checked_.store(true, std::memory_order_release);
}

void ShardFile::bring_table(const void* part, std::size_t bytes) const {
  map_.bring(static_cast<std::size_t>(static_cast<const std::uint8_t*>(part) - map_.bytes().data()),
             bytes);
}

const ShardEntry& ShardFile::entry(std::int64_t record) const {
  check_table();
  require(record >= 0 && record < records(), "shards", "{} has no record {}", path(), record);
  return entries_[record];
}

std::string ShardFile::name(std::int64_t record) const {
  const ShardEntry* found = &entry(record);
  bring_table(found - (record > 0 ? 1 : 0), (record > 0 ? 2 : 1) * sizeof(ShardEntry));
  const std::uint32_t end = found->name_end, begin = record > 0 ? found[-1].name_end : 0;
  bring_table(names_ + begin, end - begin);
  return {names_ + begin, end - begin};
}

std::string ShardFile::title(std::int64_t record) const {
  return fmt::format("{}: record {} ({})", path(), record, shown(name(record), 200));
}

std::span<const std::uint8_t> ShardFile::bytes(std::int64_t record, bool resident) const {
  const ShardEntry& found = entry(record);
  if (!resident) {
    bring_table(&found, sizeof found);
    map_.bring(found.at, found.bytes);
  }
  return map_.bytes().subspan(found.at, found.bytes);
}

bool ShardFile::will_read(std::int64_t record) const {
  const ShardEntry& found = entry(record);
  bring_table(&found, sizeof found);
  return map_.will_read(found.at, found.bytes);
}

void ShardFile::verify(std::int64_t record) const {
  if (checksum_of(bytes(record)) == entry(record).checksum) return;
  fail(ExitCode::kUsage, "shards",
       "{}: is damaged: its {} bytes have another checksum than when they were written; {}",
       title(record), entry(record).bytes, kAnew);
}

ShardWriter::ShardWriter(const std::string& folder, const ShardSettings& settings,
                         std::uint32_t split, std::uint32_t number)
    : file_(folder + "/" + shard_name(split, number)) {
  footer_.settings = settings;
  footer_.split = split;
  footer_.number = number;
  const ShardPrefix prefix;
  file_.write(&prefix, sizeof prefix);
  at_ = sizeof prefix;
}

void ShardWriter::add(const Picture& picture) {
  file_.write(picture.bytes.data(), picture.bytes.size());
  names_ += picture.name;
  entries_.push_back({.at = at_,
                      .bytes = static_cast<std::uint32_t>(picture.bytes.size()),
                      .checksum = picture.checksum,
                      .height = static_cast<std::uint32_t>(picture.height),
                      .width = static_cast<std::uint32_t>(picture.width),
                      .label = static_cast<std::uint32_t>(picture.label),
                      .name_end = static_cast<std::uint32_t>(names_.size())});
  at_ += picture.bytes.size();
}

void ShardWriter::commit() {
  footer_.records = static_cast<std::uint32_t>(entries_.size());
  footer_.table_at = at_;
  std::string table(padding_after(at_), '\0');
  table.append(reinterpret_cast<const char*>(entries_.data()),
               entries_.size() * sizeof entries_[0]);
  table += names_;
  footer_.table_checksum = checksum_of(text_bytes(table));
  footer_.bytes = at_ + table.size() + sizeof footer_;
  footer_.checksum = footer_checksum(footer_);
  file_.write(table.data(), table.size());
  file_.write(&footer_, sizeof footer_);
  file_.commit();
}

}  // namespace starling
