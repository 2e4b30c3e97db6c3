#pragma once

#include <cstdint>
#include <string>

#include "apps/data/shards/prepare_images.h"

namespace starling {

/// Settings of `starling-prepare example`.
struct ExampleTree {
  std::string destination;
  std::int64_t classes = 100, train = 12, val = 3;  ///< train, val: pictures per class
  std::int64_t width = 500, height = 375;  ///< of landscape pictures; every third is portrait
  std::uint64_t seed = 1;
  int threads = 1;
};

struct ExampleReport {
  std::int64_t pictures = 0;
  std::uint64_t bytes = 0;
  bool stopped = false;
};

/// Generates pictures as destination/train/<class>/*.jpg and destination/val/<class>/*.jpg, to try
/// a config or a machine without the real data. A class is a shape, two colours and a background
/// grid; position, size, light and noise are random, so that models must generalise. Pictures do
/// not depend on the number of threads. Error(kUsage) if the folder is not empty.
ExampleReport write_example_tree(const ExampleTree& tree, const PrepareWatch& watch);

}  // namespace starling
