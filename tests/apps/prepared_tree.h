#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/data/shards/prepare_images.h"
#include "apps/data/shards/shard_set.h"
#include "core/operations/accesses.h"
#include "tests/apps/picture_tree.h"

// Shards of a tree of pictures, whole and damaged.
namespace starling::test {

namespace fs = std::filesystem;
using ShardSplit = Dataset::Split;

/// A tree of pictures and shards of it, two pictures each.
struct PreparedTree {
  PictureTree tree;
  PrepareOptions options{
      .source = tree.folder.path(), .destination = tree.folder / "shards", .shard_pictures = 2};
  PrepareReport make(const PrepareWatch& watch = {}) const {
    return prepare_images(options, watch);
  }
  std::string file(const std::string& name) const { return options.destination + "/" + name; }
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::directory_iterator(options.destination))
      all[entry.path().filename()] = read_text(entry.path());
    return all;
  }
  std::unique_ptr<ImageDataset> open(nlohmann::json more = nlohmann::json::object()) const {
    more["type"] = "shards";
    more["path"] = options.destination;
    return tree.open(more);
  }
  std::string refusal(const nlohmann::json& more = nlohmann::json::object()) const {
    return error_of(ExitCode::kUsage, [&] { open(more); });
  }
};

inline std::vector<std::uint8_t> read_image(const ImageDataset& dataset, ShardSplit split,
                                            std::int64_t index,
                                            const Dataset::PictureChoice& choose = {},
                                            std::int64_t side = 16) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(3 * side * side));
  std::int32_t label = -1;
  const std::array<std::byte*, 2> out{reinterpret_cast<std::byte*>(pixels.data()),
                                      reinterpret_cast<std::byte*>(&label)};
  dataset.read_part(split, index, choose, 0, out);
  CHECK(label == dataset.label(split, index));
  return pixels;
}

inline std::int64_t samples_of(const ImageDataset& dataset, ShardSplit split) {
  const DatasetInfo info = dataset.info();
  return split == ShardSplit::kTrain ? info.train_samples : info.test_samples;
}

inline void read_everything(const ImageDataset& dataset) {
  for (const ShardSplit split : {ShardSplit::kTrain, ShardSplit::kTest}) {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < samples_of(dataset, split); ++i) all.push_back(i);
    dataset.will_read(split, all);
    for (const std::int64_t i : all) (void)read_image(dataset, split, i);
  }
}

/// What `check` says of a folder: its faults, or the error that ends it.
inline std::vector<std::string> faults_of(const std::string& folder, int threads = 1) {
  std::vector<std::string> faults;
  PrepareWatch watch;
  watch.bad = [&](const Error& error) { faults.emplace_back(error.what()); };
  try {
    const CheckReport report = check_shards(folder, threads, watch);
    CHECK(report.faults == static_cast<std::int64_t>(faults.size()));
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    faults.emplace_back(error.what());
  }
  return faults;
}

/// Writes a file anew. Some file systems bring one to the disk that is emptied and written again,
/// which takes far longer.
inline void rewrite(const std::string& path, const std::string& text) {
  fs::remove(path);
  write_bytes(path, Bytes(text.begin(), text.end()));
}

/// The checksums of a shard's parts, made right again: what is left to find is what the numbers
/// say.
inline void mend_checksums(std::string& text) {
  ShardFooter footer;
  if (text.size() < sizeof footer) return;
  char* at = text.data() + text.size() - sizeof footer;
  std::memcpy(&footer, at, sizeof footer);
  footer.bytes = text.size();
  if (footer.table_at <= text.size() - sizeof footer) {
    footer.table_checksum =
        checksum_of({reinterpret_cast<const std::uint8_t*>(text.data()) + footer.table_at,
                     text.size() - sizeof footer - footer.table_at});
  }
  footer.checksum = 0;
  footer.checksum = checksum_of(bytes_of(footer));
  std::memcpy(at, &footer, sizeof footer);
}

}  // namespace starling::test
