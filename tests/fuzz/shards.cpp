// A folder of shards. The first byte says whether the rest is the index (0, 2) or the one shard
// that a valid index means (1, 3), and whether its checksums are set right first (2, 3), so that
// what they keep away is tried, too.
#include <array>
#include <cstring>

#include "apps/data/shards/shard_file.h"
#include "apps/pictures/picture.h"
#include "core/operations/accesses.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace starling;

template <class T>
T taken(const std::string& from, std::size_t at) {
  T value;
  std::memcpy(&value, from.data() + at, sizeof value);
  return value;
}
template <class T>
void put(std::string& to, std::size_t at, const T& value) {
  std::memcpy(to.data() + at, &value, sizeof value);
}
std::uint32_t checksum(const std::string& of, std::size_t begin, std::size_t end) {
  return checksum_of({reinterpret_cast<const std::uint8_t*>(of.data()) + begin, end - begin});
}

void mend_shard(std::string& file) {
  if (file.size() < sizeof(ShardPrefix) + sizeof(ShardFooter)) return;
  const std::size_t at = file.size() - sizeof(ShardFooter);
  auto footer = taken<ShardFooter>(file, at);
  footer.bytes = file.size();
  if (footer.table_at < at)
    footer.table_checksum = checksum(file, static_cast<std::size_t>(footer.table_at), at);
  footer.checksum = 0;
  footer.checksum = checksum_of(bytes_of(footer));
  put(file, at, footer);
}

/// Its checksum lies 12 bytes from the begin, its size after that.
void mend_index(std::string& file) {
  if (file.size() < 24) return;
  put(file, 16, std::uint64_t{file.size()});
  put(file, 12, std::uint32_t{0});
  put(file, 12, checksum(file, 0, file.size()));
}

void read_index(std::string content, bool mend) {
  if (mend) mend_index(content);
  fuzz::file("shards.index", content);
  const ShardIndex index = read_shard_index(fuzz::folder());
  // What is read as whole is what would be written; but a made-up one may hold something in fields
  // that are zero.
  if (!mend && shard_index_text(index) != content) std::abort();
}

/// As a data set reads it, whatever the pictures' own checksums say.
void read_shard(std::string content, bool mend) {
  if (mend) mend_shard(content);
  const ShardFile file(fuzz::file("train-00000.shard", content));
  static PictureDecoder decoder({.max_pixels = 1 << 20});
  const auto middle = [](const PictureSize& size) {
    return PicturePart::window(size.height / 4, size.width / 4, size.height - size.height / 4,
                               size.width - size.width / 4);
  };
  std::array<std::uint8_t, 3 * 8 * 8> out{};
  const auto records = std::min<std::int64_t>(file.records(), 64);
  for (std::int64_t record = 0; record < records; ++record) {
    fuzz::reads_or_refuses([&] { file.verify(record); });
    fuzz::reads_or_refuses([&] {
      const auto bytes = file.bytes(record);
      const ShardEntry& entry = file.entry(record);
      if (file.footer().settings.kind != ShardKind::kRaw) {
        decoder.decode(bytes, file.title(record), middle, 8, 8, 3, out.data());
      } else {
        decoder.cut({bytes.data(), entry.height, entry.width}, file.path(), middle, 8, 8,
                    out.data());
      }
    });
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int mode = size > 0 ? data[0] : 0;
  const std::string content(fuzz::text(data, size).substr(std::min<std::size_t>(size, 1)));
  return fuzz::reads_or_refuses([&] {
    mode % 2 == 1 ? read_shard(content, mode / 2 % 2 == 1) : read_index(content, mode / 2 % 2 == 1);
  });
}
