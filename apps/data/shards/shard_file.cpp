#include "apps/data/shards/shard_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/error.h"
#include "core/file_io.h"
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

struct IndexFileHeader {
  std::array<char, 8> magic{'S', 't', 'a', 'r', 'S', 'h', 'I', 'x'};
  std::uint32_t version = kShardVersion;
  std::uint32_t checksum = 0;  ///< of the whole file, computed with this field 0
  std::uint64_t bytes = 0;
  std::uint32_t classes = 0;
  std::array<std::uint32_t, 2> shards{};
  std::uint32_t zero = 0;
  ShardSettings settings;
};
static_assert(sizeof(IndexFileHeader) == 72 && sizeof(ShardIndex::Shard) == 24);

/// Reads consecutive fields; returns false at the end of the data.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  template <class T>
  bool read(T* to, std::uint64_t count) {
    if (count > bytes_.size() / sizeof(T)) return false;
    const auto length = static_cast<std::size_t>(count) * sizeof(T);
    if (length > 0) std::memcpy(static_cast<void*>(to), bytes_.data(), length);
    bytes_ = bytes_.subspan(length);
    return true;
  }
  template <class T>
  bool read(std::vector<T>& to, std::uint64_t count) {
    if (count > bytes_.size() / sizeof(T)) return false;
    to.resize(static_cast<std::size_t>(count));
    return read(to.data(), count);
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::span<const std::uint8_t> bytes_;
};

template <class T>
void put(std::string& text, const T* from, std::size_t count) {
  text.append(reinterpret_cast<const char*>(from), count * sizeof(T));
}

bool take_index(FieldReader& reader, const IndexFileHeader& header, ShardIndex& index) {
  for (std::size_t split = 0; split < 2; ++split) {
    if (!reader.read(index.shards[split], header.shards[split])) return false;
    if (header.shards[split] == 0) continue;
    std::vector<std::int64_t>& first = index.first[split];
    if (!reader.read(first, std::uint64_t{header.classes} + 1)) return false;
    std::int64_t records = 0;
    for (const ShardIndex::Shard& shard : index.shards[split]) records += shard.records;
    if (first[0] != 0 || first.back() != records || !std::is_sorted(first.begin(), first.end()))
      return false;
  }
  for (std::uint32_t i = 0; i < header.classes; ++i) {
    std::uint32_t length = 0;
    std::vector<char> name;
    if (!reader.read(&length, 1) || !reader.read(name, length)) return false;
    index.classes.emplace_back(name.begin(), name.end());
  }
  return reader.empty() && header.shards[0] > 0 && header.classes > 0;
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
    if (right && footer_.settings.kind == ShardKind::kRaw) {
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

std::int64_t ShardIndex::skipped() const {
  std::int64_t sum = 0;
  for (const auto& split : shards) {
    for (const Shard& shard : split) sum += shard.skipped;
  }
  return sum;
}

std::string shard_index_path(const std::string& folder) { return folder + "/shards.index"; }
bool has_shard_index(const std::string& folder) { return file_exists(shard_index_path(folder)); }

ShardIndex read_shard_index(const std::string& folder) {
  const std::string path = shard_index_path(folder);
  if (!file_exists(path)) {
    const std::string missing = what_is_missing(path);
    fail(ExitCode::kUsage, "shards",
         "{}; needed: a folder that starling-prepare images SRC DEST has made, and has "
         "brought to its end",
         missing.empty() ? "there is no " + path : missing);
  }
  const MappedFile file(path);
  IndexFileHeader header;
  FieldReader reader(file.bytes());
  if (!reader.read(&header, 1) || header.magic != IndexFileHeader{}.magic)
    fail(ExitCode::kUsage, "shards",
         "{} is no index of shards by its first bytes; needed: a folder that starling-prepare has "
         "made",
         path);
  if (header.version != kShardVersion) {
    fail(ExitCode::kUsage, "shards",
         "{} is of version {}, this program reads version {}; prepare the pictures again", path,
         header.version, kShardVersion);
  }
  const std::uint32_t written = header.checksum;
  header.checksum = 0;
  const std::uint32_t found =
      checksum_of(file.bytes().subspan(sizeof header), checksum_of(bytes_of(header)));
  ShardIndex index;
  index.settings = header.settings;
  if (header.bytes != file.bytes().size() || found != written ||
      !take_index(reader, header, index)) {
    fail(ExitCode::kUsage, "shards",
         "{} is cut off or damaged; delete the file and call starling-prepare images again, "
         "which writes it again",
         path);
  }
  return index;
}

std::string shard_index_text(const ShardIndex& index) {
  IndexFileHeader header;
  header.classes = static_cast<std::uint32_t>(index.classes.size());
  header.settings = index.settings;
  std::string rest;
  for (std::size_t split = 0; split < 2; ++split) {
    header.shards[split] = static_cast<std::uint32_t>(index.shards[split].size());
    put(rest, index.shards[split].data(), index.shards[split].size());
    if (header.shards[split] > 0) put(rest, index.first[split].data(), index.first[split].size());
  }
  for (const std::string& name : index.classes) {
    const auto length = static_cast<std::uint32_t>(name.size());
    put(rest, &length, 1);
    rest += name;
  }
  header.bytes = sizeof header + rest.size();
  header.checksum = checksum_of(text_bytes(rest), checksum_of(bytes_of(header)));
  std::string text;
  put(text, &header, 1);
  return text + rest;
}

void check_belongs(const ShardFile& file, const ShardIndex& index, std::size_t split,
                   std::size_t number) {
  const ShardFooter& footer = file.footer();
  const ShardIndex::Shard& meant = index.shards[split][number];
  if (footer.checksum == meant.footer_checksum && footer.bytes == meant.bytes &&
      footer.records == meant.records && footer.settings == index.settings &&
      footer.split == split && footer.number == number)
    return;
  fail(ExitCode::kUsage, "shards",
       "{} is not the shard that the index beside it means, but one of another preparation; delete "
       "the file and call starling-prepare images again, which makes it anew",
       file.path());
}

ShardSet::ShardSet(const std::string& folder, const ShardIndex& index, std::size_t split)
    : starts_(1, 0),
      verified_(static_cast<std::size_t>(index.records(split))),
      resident_(verified_.size()) {
  const auto& shards = index.shards[split];
  for (std::size_t number = 0; number < shards.size(); ++number) {
    files_.push_back(std::make_unique<ShardFile>(
        folder + "/" +
        shard_name(static_cast<std::uint32_t>(split), static_cast<std::uint32_t>(number))));
    check_belongs(*files_.back(), index, split, number);
    starts_.push_back(starts_.back() + files_.back()->records());
  }
}

ShardSet::Place ShardSet::place(std::int64_t record) const {
  require(record >= 0 && record < records(), "shards", "record {} was asked for, of {}", record,
          records());
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), record);
  const auto file = static_cast<std::size_t>(after - starts_.begin()) - 1;
  return {files_[file].get(), record - starts_[file]};
}

std::span<const std::uint8_t> ShardSet::bytes(std::int64_t record) const {
  const auto [file, number] = place(record);
  const auto at = static_cast<std::size_t>(record);
  const bool resident = resident_[at].exchange(false, std::memory_order_relaxed);
  if (!verified_[at].load(std::memory_order_relaxed)) {
    file->verify(number);
    verified_[at].store(true, std::memory_order_relaxed);
  }
  return file->bytes(number, resident);
}

void ShardSet::will_read(std::span<const std::int64_t> records) const {
  std::vector<std::int64_t> sorted(records.begin(), records.end());
  std::sort(sorted.begin(), sorted.end());
  try {
    for (const std::int64_t record : sorted) {
      const auto [file, number] = place(record);
      if (file->will_read(number))
        resident_[static_cast<std::size_t>(record)].store(true, std::memory_order_relaxed);
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
  }
}

}  // namespace starling
