#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/benches.h"
#include "apps/bench/support.h"
#include "apps/data/augment.h"
#include "apps/data/dataset.h"
#include "apps/data/shards/shard_set.h"
#include "core/console.h"
#include "core/random.h"

namespace starling {
namespace {

constexpr std::int64_t kImageSide = 224, kBatch = 64;
constexpr std::size_t kImageBytes = 3 * kImageSide * kImageSide;

std::unique_ptr<Dataset> open_shards(const std::string& folder, bool has_val) {
  const nlohmann::json json{{"path", folder}, {"val_fraction", has_val ? 0.0 : 0.1}};
  ConfigSection section(json, "bench");
  auto dataset = datasets().make("shards", "type", section, 1);
  dataset->open();
  return dataset;
}

/// Batch memory for pixels that a device resizes, allocated consecutively as the loader does for a
/// GPU.
class BatchTarget final : public CutTarget {
 public:
  explicit BatchTarget(std::byte* batch) : batch_(reinterpret_cast<std::uint8_t*>(batch)) {}
  std::uint8_t* take(std::int64_t bytes) override {
    const auto wanted = static_cast<std::size_t>(bytes);
    if (wanted > kBatch * kImageBytes) return nullptr;
    if (used_ + wanted > kBatch * kImageBytes) used_ = 0;
    taken += static_cast<double>(wanted);
    return batch_ + std::exchange(used_, used_ + wanted);
  }
  double taken = 0.0;  ///< bytes in total

 private:
  std::uint8_t* batch_;
  std::size_t used_ = 0;
};

/// Seconds to read samples, one batch at a time.
double read_all(const Dataset& dataset, const std::vector<std::int64_t>& samples,
                const ImageChange& change, std::byte* batch, CutTarget* later = nullptr) {
  std::int32_t label = 0;
  return seconds_of([&] {
    for (std::size_t begin = 0; begin < samples.size(); begin += kBatch) {
      const std::span<const std::int64_t> part(
          samples.data() + begin, std::min<std::size_t>(kBatch, samples.size() - begin));
      dataset.will_read(Dataset::Split::kTrain, part);
      for (std::size_t i = 0; i < part.size(); ++i) {
        const std::array<std::byte*, 2> out{batch + i * kImageBytes,
                                            reinterpret_cast<std::byte*>(&label)};
        const auto choose = [&](const PictureSize& size) { return change.part(part[i], size); };
        dataset.read_part(Dataset::Split::kTrain, part[i], choose, 0, out, later);
      }
    }
  });
}

/// Seconds to copy the same number of bytes from the mapped records.
double copy_all(const ShardSet& set, const std::vector<std::int64_t>& samples, std::byte* batch) {
  std::vector<const std::uint8_t*> from;
  for (const std::int64_t sample : samples) {
    const std::span<const std::uint8_t> bytes = set.bytes(sample);
    if (bytes.size() >= kImageBytes) from.push_back(bytes.data());
  }
  if (from.empty()) return 0.0;
  const double seconds = seconds_of([&] {
    for (std::size_t i = 0; i < from.size(); ++i)
      std::memcpy(batch + i % kBatch * kImageBytes, from[i], kImageBytes);
  });
  return seconds / static_cast<double>(from.size()) * static_cast<double>(samples.size());
}

}  // namespace

int bench_shards(const PicturesBench& settings) {
  register_builtin_datasets();
  register_builtin_augmentations();
  const ShardIndex index = read_shard_index(settings.folder);
  const bool raw = index.settings.kind == static_cast<std::uint32_t>(ShardKind::kRaw),
             has_val = !index.shards[1].empty();
  const nlohmann::json json{{"random_resized_crop", nlohmann::json::object()}};
  ConfigSection section(json, "bench");
  const Augmenters crop = read_augmenters(section, Shape{kImageSide, kImageSide, 3});
  const ShardSet set(settings.folder, index, 0);
  std::vector<std::byte> memory(kBatch * kImageBytes + 64);  // aligned to cache lines below
  std::byte* const batch =
      memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);

  std::vector<double> open_ms, first_ms, again_ms, left_ms, centre_ms, copy_ms;
  double left_bytes = 0.0;  // per picture
  std::vector<std::int64_t> samples;
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    std::unique_ptr<Dataset> dataset;
    open_ms.push_back(1e3 * seconds_of([&] { dataset = open_shards(settings.folder, has_val); }));
    samples = random_permutation(1, RandomStream::kPermutation, 0, dataset->info().train_samples);
    samples.resize(std::min(samples.size(), static_cast<std::size_t>(settings.pictures)));
    const auto each_ms = [&](double seconds) {
      return 1e3 * seconds / static_cast<double>(samples.size());
    };
    const ImageChange change = image_change(crop, 1, repeat);
    first_ms.push_back(each_ms(read_all(*dataset, samples, change, batch)));
    again_ms.push_back(each_ms(read_all(*dataset, samples, change, batch)));
    BatchTarget device(batch);
    left_ms.push_back(each_ms(read_all(*dataset, samples, change, batch, &device)));
    left_bytes = device.taken / static_cast<double>(samples.size());
    centre_ms.push_back(each_ms(read_all(*dataset, samples, ImageChange(), batch)));
    if (raw) copy_ms.push_back(each_ms(copy_all(set, samples, batch)));
  }
  const double open = median(open_ms), first = median(first_ms), again = median(again_ms),
               left = median(left_ms), centre = median(centre_ms), copy = median(copy_ms);
  const double left_ratio = left_bytes / left / (static_cast<double>(kImageBytes) / copy);
  if (settings.json) {
    nlohmann::json line{{"records", index.records(0) + index.records(1)},
                        {"pictures", samples.size()},
                        {"open_ms", open},
                        {"first_crop_ms", first},
                        {"crop_ms", again},
                        {"left_ms", left},
                        {"left_bytes", left_bytes},
                        {"centre_ms", centre}};
    if (copy > 0.0) {
      line.update({{"copy_ms", copy},
                   {"centre_ratio", copy / centre},
                   {"crop_ratio", copy / again},
                   {"left_ratio", left_ratio}});
    }
    answer("{}\n", line.dump());
    return 0;
  }
  answer(
      "{} records in {} shards, index of {} bytes, opened in {:.1f} ms; {} records, one core, "
      "medians of {} rounds\n",
      index.records(0) + index.records(1), index.shards[0].size() + index.shards[1].size(),
      shard_index_text(index).size(), open, samples.size(), settings.repeats);
  answer("{:<58} {:>8} {:>10} {:>8}\n", "", "ms", "pictures/s", "GB/s");
  const auto row = [](const char* name, double ms,
                      double bytes = static_cast<double>(kImageBytes)) {
    answer("{:<58} {:>8.4f} {:>10.0f} {:>8.2f}\n", name, ms, 1e3 / ms, bytes / ms / 1e6);
  };
  row("random_resized_crop to 224×224, first read: its checksum too", first);
  row("random_resized_crop to 224×224", again);
  row("the same, left to a GPU to resize", left, left_bytes);
  row(raw ? "the centre of 224×224, nothing resized at --size 256" : "the centre of 224×224",
      centre);
  if (copy <= 0.0) return 0;
  row("copying as many bytes", copy);
  answer(
      "rate over copying: {:.2f} of the centre, {:.2f} of random_resized_crop, {:.2f} of what is "
      "left to a GPU\n",
      copy / centre, copy / again, left_ratio);
  return 0;
}

}  // namespace starling
