#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/data/image_dataset.h"
#include "apps/data/sampler.h"

namespace starling {

/// Reads `limit` and `test_limit`; 0: all samples. `which` documents which samples a limit keeps.
void read_limits(ConfigSection& section, std::int64_t& limit, std::int64_t& test_limit,
                 const std::string& which = "only the first samples");

/// Base of the built-in data sets of images: reads the keys `limit`, `test_limit` and `normalize`.
class BuiltinDataset : public ImageDataset {
 public:
  ImageInfo images() const final { return info_; }

 protected:
  BuiltinDataset(Shape image, std::int64_t classes);

  /// Reads `normalize`; the defaults have one entry per channel.
  void read_normalize(ConfigSection& section, const std::vector<double>& mean,
                      const std::vector<double>& deviation);
  /// Sets the numbers of samples that exist; the limits are applied to them.
  void set_samples(std::int64_t train, std::int64_t test);

  ImageInfo info_;
  std::int64_t limit_ = 0, test_limit_ = 0;  ///< 0: all
};

/// The files of data sets in this folder, shards/ and tokens/. Each defines register_NAME, which
/// register_builtin_datasets() calls.
#define STARLING_DATASET_FILES(X) \
  X(synthetic)                    \
  X(cifar)                        \
  X(csv)                          \
  X(mnist)                        \
  X(image_folder)                 \
  X(text)                         \
  X(chat)                         \
  X(shards)
#define STARLING_DECLARE_DATASETS(name) void register_##name(DatasetRegistry& registry);
STARLING_DATASET_FILES(STARLING_DECLARE_DATASETS)
#undef STARLING_DECLARE_DATASETS

/// Registers a class that is made of the section, the seed and `more`.
template <class Set, class... More>
void add_dataset(DatasetRegistry& registry, const std::string& name, const std::string& summary,
                 const More&... more) {
  registry.add(
      name,
      [more...](ConfigSection& section, std::uint64_t seed) {
        return std::make_unique<Set>(section, seed, more...);
      },
      summary);
}

/// Registers the samplers of the files with these names; register_builtin_samplers() calls them.
void register_class_balanced_sampler(SamplerRegistry& registry);
void register_load_balanced_sampler(SamplerRegistry& registry);

}  // namespace starling
