#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "apps/bench/benches.h"
#include "apps/data/batch_maker.h"
#include "apps/data/image_dataset.h"
#include "core/console.h"
#include "kernels/cpu/cpu_backend.h"

namespace starling {
namespace {

struct AugmentBench {
  std::int64_t size = 32;  ///< height and width in pixels
  int repeats = 15;
  bool json = false;
};

constexpr std::int64_t kBenchBatch = 128, kBenchClasses = 100;

/// Smooth images with noise, held in memory.
class MemoryImages final : public ImageDataset {
 public:
  explicit MemoryImages(std::int64_t size)
      : size_(size), bytes_(static_cast<std::size_t>(kBenchBatch * size * size * 3)) {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const std::uint32_t noise = random_bits(1, RandomStream::kSynthetic, 0, i).v[0] >> 28;
      bytes_[i] =
          static_cast<std::uint8_t>((i / 7 + i / static_cast<std::size_t>(3 * size)) % 200 + noise);
    }
  }
  ImageInfo images() const override {
    return {.image = {size_, size_, 3},
            .classes = kBenchClasses,
            .train_samples = kBenchBatch,
            .mean = {0.5, 0.5, 0.5},
            .std = {0.25, 0.25, 0.25}};
  }
  void open() override {}
  std::int64_t label(Split, std::int64_t index) const override { return index % kBenchClasses; }
  void image(Split, std::int64_t index, std::uint8_t* out) const override {
    const auto each = static_cast<std::size_t>(size_ * size_ * 3);
    std::memcpy(out, bytes_.data() + static_cast<std::size_t>(index) * each, each);
  }

 private:
  std::int64_t size_;
  std::vector<std::uint8_t> bytes_;
};

/// An augmentation setting and its measured times.
struct AugmentRow {
  const char* name;
  nlohmann::json keys;
  std::vector<double> microseconds = {};
};

int bench_augment(const AugmentBench& settings) {
  const MemoryImages images(settings.size);
  CpuBackend backend(1);
  const nlohmann::json crop{{"crop_padding", std::min<std::int64_t>(4, settings.size - 1)},
                            {"flip", true}};
  const auto more = [&](nlohmann::json keys) {
    keys.update(crop);
    return keys;
  };
  const nlohmann::json jitter{
      {"brightness", 0.4}, {"contrast", 0.4}, {"saturation", 0.4}, {"hue", 0.1}};
  std::vector<AugmentRow> rows{
      {"none", nlohmann::json::object()},
      {"crop_padding, flip", crop},
      {"the same, reflected", more({{"padding_mode", "reflect"}})},
      {"+ color_jitter", more({{"color_jitter", jitter}})},
      {"+ rand_augment", more({{"rand_augment", nlohmann::json::object()}})},
      {"+ trivial_augment", more({{"trivial_augment", true}})},
      {"+ random_erasing", more({{"random_erasing", {{"p", 1.0}}}})},
      {"+ cutout", more({{"cutout", settings.size / 4}})},
      {"+ mixup", more({{"mixup", 0.2}})},
      {"+ cutmix", more({{"cutmix", 1.0}})}};
  std::vector<std::int64_t> samples(static_cast<std::size_t>(kBenchBatch));
  std::iota(samples.begin(), samples.end(), 0);
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    for (AugmentRow& row : rows) {
      ConfigSection section(row.keys, "bench");
      const Augmenters augment = read_augmenters(section, images.images().image);
      const bool mixed = !mixing_key(augment).empty();
      const auto maker = make_batch_maker(
          images,
          {.batch_size = kBenchBatch,
           .crop_padding = padding_of(augment),
           .erased = erased_values(augment),
           .steps = steps_of(augment, false),
           .mix = mixed,
           .soft_target = mixed ? SoftTarget{"label", kBenchClasses} : SoftTarget{}},
          backend);
      BatchMaker::Slot slot = maker->make_slot();
      maker->fill(slot, samples, image_change(augment, 1, 0));
      constexpr int kEpochs = 4;  // each draws different operations
      const double seconds = seconds_of([&] {
        for (int epoch = 0; epoch < kEpochs; ++epoch)
          maker->fill(slot, samples, image_change(augment, 1, 1 + repeat * kEpochs + epoch));
      });
      row.microseconds.push_back(1e6 * seconds / (kEpochs * kBenchBatch));
    }
  }
  if (settings.json) {
    nlohmann::json json;
    for (const AugmentRow& row : rows) json[row.name] = median(row.microseconds);
    answer("{}\n", json.dump());
    return 0;
  }
  answer("images of {}×{}×3 to normalised fp32, one core, batches of {}, medians of {} rounds\n",
         settings.size, settings.size, kBenchBatch, settings.repeats);
  for (const AugmentRow& row : rows)
    answer("{:<24} {:>8.2f} µs an image\n", row.name, median(row.microseconds));
  return 0;
}

}  // namespace

Command add_augment_bench(CLI::App& app) {
  const auto given = std::make_shared<AugmentBench>();
  AugmentBench& settings = *given;
  CLI::App* command =
      app.add_subcommand("augment", "random changes of training images on one core");
  command->add_flag("--json", settings.json, "one JSON object");
  add_number(*command, "--size", settings.size, "height and width", 8, 1024);
  add_number(*command, "--repeats", settings.repeats, "runs to take the median of", 1, 100000);
  return {command, [given] { return bench_augment(*given); }};
}

}  // namespace starling
