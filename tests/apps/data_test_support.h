#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/data/augment.h"
#include "apps/data/image_dataset.h"
#include "core/backend.h"
#include "core/error.h"
#include "core/operations/pictures.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling::test {

using Bytes = std::vector<std::uint8_t>;

inline void write_bytes(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

inline int largest_gap(const Bytes& a, const Bytes& b) {
  REQUIRE(a.size() == b.size());
  int most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(int{a[i]} - int{b[i]}));
  return most;
}

/// A data set from the JSON of its `data` section, keys checked.
inline std::unique_ptr<ImageDataset> make_dataset(const nlohmann::json& json,
                                                  std::uint64_t seed = 1) {
  register_builtin_datasets();
  ConfigSection section(json, "test.json");
  const std::string type = section.required_text("type", "");
  auto dataset = datasets().make(type, "data.type", section, seed);
  section.finish();
  auto* images = dynamic_cast<ImageDataset*>(dataset.release());
  if (!images) throw std::logic_error(type + " has no images");
  return std::unique_ptr<ImageDataset>(images);
}

/// Made as a config makes them.
inline Augmenters augmenters_from(const nlohmann::json& keys, const Shape& image) {
  register_builtin_augmentations();
  ConfigSection section(keys, "test.json");
  return read_augmenters(section, image);
}
/// Crops and flips.
inline Augmenters augmenters_of(std::int64_t crop_padding, bool flip) {
  return augmenters_from({{"crop_padding", crop_padding}, {"flip", flip}}, Shape{1000, 1000, 3});
}
inline Augmentation augmentation_of(std::uint64_t seed, std::int64_t epoch, std::int64_t sample,
                                    std::int64_t crop_padding, bool flip) {
  const Augmenters augmenters = augmenters_of(crop_padding, flip);
  const ImageChange change = image_change(augmenters, seed, epoch);
  return change ? change(sample, {}, Shape{1000, 1000, 3}) : Augmentation{};
}

/// Labelled images whose bytes tell split, sample and position.
class NumberedDataset : public ImageDataset {
 public:
  NumberedDataset(std::int64_t train, std::int64_t test, Shape image = Shape{6, 5, 3},
                  std::int64_t classes = 10) {
    info_.image = image;
    info_.classes = classes;
    info_.train_samples = train;
    info_.test_samples = test;
    info_.mean = {0.3, 0.4, 0.5, 0.6};
    info_.std = {0.2, 0.25, 0.3, 0.35};
  }
  ImageInfo images() const override { return info_; }
  void open() override {}
  std::int64_t label(Split split, std::int64_t index) const override {
    return index == bad_sample ? info_.classes
                               : (index * 7 + (split == Split::kTest ? 3 : 0)) % info_.classes;
  }
  void image(Split split, std::int64_t index, std::uint8_t* out) const override {
    for (std::int64_t i = 0; i < info_.image.elements(); ++i) {
      out[i] = static_cast<std::uint8_t>(index * 31 + i * 5 + (split == Split::kTest ? 101 : 0));
    }
  }
  std::int64_t bad_sample = -1;

 private:
  ImageInfo info_;
};

/// A backend that has memory only: what the loader needs. `host` false plays a device with memory
/// of its own, which augments.
class MemoryBackend : public Backend {
 public:
  explicit MemoryBackend(bool host = true) : host_(host) {}
  DeviceType device() const override { return host_ ? DeviceType::kCpu : DeviceType::kCuda; }
  std::string description() const override { return "memory"; }
  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    ++allocations;
    return std::make_shared<Block>(*this, bytes);
  }
  MemoryStats memory_stats() const override { return {}; }
  void copy_from_host(const void* from, const Tensor& to) override {
    ++copies;
    std::memcpy(to.raw(), from, to.bytes());
  }
  void copy(const Tensor&, const Tensor&) override { no(); }
  void copy_to_host(const Tensor&, void*) override { no(); }
  Event copy_to_host_later(const Tensor&, void*) override { no(); }
  void fill(const Tensor&, double) override { no(); }
  void set_stream(StreamKind) override {}
  StreamKind stream() const override { return StreamKind::kCompute; }
  Event record() override { return {}; }
  void wait(Event) override {}
  void synchronize(Event) override {}
  void synchronize() override {}
  void issue(const AugmentImages& args) override {
    if (host_) no();
    ++augmentations;
    cpu_.augment_images(args);  // it looks at addresses alone
  }

  int allocations = 0, copies = 0, augmentations = 0;

 private:
  class Block : public Storage {
   public:
    Block(Backend& backend, std::size_t bytes)
        : Storage(backend,
                  static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64)),
                  bytes) {}
    ~Block() override { std::free(data()); }
  };
  [[noreturn]] static void no() { throw std::logic_error("this backend has memory only"); }
  bool host_;
  CpuBackend cpu_{1};
};

}  // namespace starling::test
