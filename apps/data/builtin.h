#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/data/image_dataset.h"
#include "apps/data/sampler.h"

namespace starling {

/// Base of the built-in data sets: the keys `limit`, `test_limit` and `normalize`, and sizes that
/// follow what is found in files.
class BuiltinDataset : public ImageDataset {
 public:
  ImageInfo images() const final { return info_; }

 protected:
  BuiltinDataset(Shape image, std::int64_t classes);

  /// Reads `normalize`; the defaults have one entry per channel.
  void read_normalize(ConfigSection& section, const std::vector<double>& mean,
                      const std::vector<double>& deviation);
  /// Reads `limit` and `test_limit`; 0 stands for all samples.
  /// `which`: what a limit takes.
  void read_limits(ConfigSection& section, const std::string& which = "only the first samples");
  /// How many samples there are before the limits.
  void set_samples(std::int64_t train, std::int64_t test);

  ImageInfo info_;
  std::int64_t limit_ = 0, test_limit_ = 0;  ///< 0: all
};

/// The files that hold data sets, here, in shards/ and in tokens/: each has a function
/// register_NAME, which register_builtin_datasets() calls.
#define STARLING_DATASET_FILES(X) \
  X(synthetic)                    \
  X(cifar)                        \
  X(csv)                          \
  X(mnist)                        \
  X(image_folder)                 \
  X(text)                         \
  X(shards)
#define STARLING_DECLARE_DATASETS(name) void register_##name(DatasetRegistry& registry);
STARLING_DATASET_FILES(STARLING_DECLARE_DATASETS)
#undef STARLING_DECLARE_DATASETS

/// The samplers of files that are named so; register_builtin_samplers() calls them.
void register_class_balanced_sampler(SamplerRegistry& registry);
void register_load_balanced_sampler(SamplerRegistry& registry);

}  // namespace starling
