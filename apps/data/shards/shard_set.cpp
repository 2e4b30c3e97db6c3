#include "apps/data/shards/shard_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/file_io.h"
#include "core/operations/accesses.h"

namespace starling {
namespace {

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
    : starts_(1, 0), verified_(index.records(split)), resident_(index.records(split)) {
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
  const bool resident = resident_.test_and_clear(record);
  if (!verified_.has(record)) {
    file->verify(number);
    verified_.set(record);
  }
  return file->bytes(number, resident);
}

void ShardSet::will_read(std::span<const std::int64_t> records) const {
  std::vector<std::int64_t> sorted(records.begin(), records.end());
  std::sort(sorted.begin(), sorted.end());
  try {
    for (const std::int64_t record : sorted) {
      const auto [file, number] = place(record);
      if (file->will_read(number)) resident_.set(record);
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
  }
}

}  // namespace starling
