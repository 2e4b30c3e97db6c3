// Data set of pictures in shards, as starling-prepare writes them.
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "apps/data/picture_dataset.h"
#include "apps/data/shards/shard_file.h"

namespace starling {
namespace {

class ShardPictures final : public PictureSource {
 public:
  ShardPictures(const std::string& folder, const ShardIndex& index, std::size_t split)
      : PictureSource(index.classes, index.first[split]),
        settings_(index.settings),
        set_(folder, index, split) {}
  std::int64_t bytes(std::int64_t index) const override {
    const auto [file, record] = set_.place(index);
    return file->entry(record).bytes;
  }
  std::string name(std::int64_t index) const override {
    const auto [file, record] = set_.place(index);
    return file->name(record);
  }
  /// From the index, so that the names in the shards need not be read.
  std::map<std::string, std::uint32_t> checksums(const std::string& /*split*/) const override {
    const std::array<std::uint32_t, 4> made{static_cast<std::uint32_t>(settings_.kind),
                                            settings_.size, settings_.quality,
                                            settings_.interpolation};
    return {{"names and sizes of prepared pictures", settings_.source},
            {"pictures by settings of starling-prepare", checksum_of(bytes_of(made))}};
  }
  void decode(std::int64_t index, PictureDecoder& decoder, const PartChoice& choose,
              std::int64_t side, std::uint8_t* out, CutTarget* later) const override {
    const std::span<const std::uint8_t> bytes = set_.bytes(index);
    const auto [file, record] = set_.place(index);
    if (settings_.kind == ShardKind::kRaw) {
      const ShardEntry& entry = file->entry(record);
      const PixelRows pixels{bytes.data(), entry.height, entry.width};
      if (later) return decoder.cut(pixels, file->path(), choose, side, side, *later);
      return decoder.cut(pixels, file->path(), choose, side, side, out);
    }
    if (later) return decoder.decode(bytes, file->title(record), choose, side, side, *later);
    decoder.decode(bytes, file->title(record), choose, side, side, 3, out);
  }
  void will_decode(std::span<const std::int64_t> indices) const override {
    set_.will_read(indices);
  }

 private:
  ShardSettings settings_;
  ShardSet set_;
};

class Shards final : public PictureDataset {
 public:
  Shards(ConfigSection& section, std::uint64_t seed)
      : PictureDataset(section, seed, "shards", "build/data/imagenet-shards",
                       "folder that starling-prepare has made") {
    section.finish();  // reports wrong keys before files are opened
    if (!has_shard_index(path())) return;
    const ShardIndex index = read_shard_index(path());
    know_classes(section, index.classes);
    if (!index.shards[1].empty()) set_samples(index.records(0), index.records(1));
  }

 private:
  void look_for_sources() const override {
    if (!has_shard_index(path())) (void)read_shard_index(path());
  }
  Sources open_sources() override {
    const ShardIndex index = read_shard_index(path());
    Sources sources;
    sources.train = std::make_unique<ShardPictures>(path(), index, 0);
    if (!index.shards[1].empty()) sources.test = std::make_unique<ShardPictures>(path(), index, 1);
    return sources;
  }
};

}  // namespace

void register_shards(DatasetRegistry& registry) {
  add_dataset<Shards>(registry, "shards", "pictures in shards, as starling-prepare writes them");
}

}  // namespace starling
