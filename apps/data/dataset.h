#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "core/config.h"
#include "core/registry.h"
#include "core/shape.h"

namespace starling {

/// What a data set declares about itself without opening a file, so that a dry run needs none.
struct DatasetInfo {
  Shape image;  ///< one sample: {H, W, C}
  std::int64_t classes = 0;
  std::int64_t train_samples = 0, test_samples = 0;  ///< after data.limit and data.test_limit
  std::array<double, 4> mean{}, std{};               ///< data.normalize, per channel
};

/// Labelled uint8 images in memory. Thread-safe for reading after open().
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual DatasetInfo info() const = 0;
  /// Reads or maps the files (or makes the images), once a process; info() then gives the sizes found. Errors are Error(kUsage) that name
  /// file, record and what is wrong. Files that are mapped share their memory among the ranks of a host.
  virtual void open() = 0;
  enum class Split : std::uint8_t { kTrain, kTest };
  virtual std::int64_t label(Split split, std::int64_t index) const = 0;
  /// The H×W×C bytes of one image.
  virtual void image(Split split, std::int64_t index, std::uint8_t* out) const = 0;
};

using DatasetRegistry = Registry<std::unique_ptr<Dataset>, ConfigSection&, std::uint64_t>;
/// Data sets by `data.type`; a maker reads all keys but `type`, `shuffle`, `augment` and `partition`, and gets the config's seed.
DatasetRegistry& datasets();
void register_builtin_datasets();

}  // namespace starling
