#pragma once

#include <cstdint>
#include <string>

#include "apps/data/shards/prepare_images.h"

namespace starling {

/// Settings of `starling-prepare example`.
struct ExampleTree {
  std::string destination;
  std::int64_t classes = 100, train = 12, val = 3;  ///< train and val: pictures of a class
  std::int64_t width = 500, height = 375;           ///< of a picture that lies; every third stands
  std::uint64_t seed = 1;
  int threads = 1;
};

struct ExampleReport {
  std::int64_t pictures = 0;
  std::uint64_t bytes = 0;
  bool stopped = false;
};

/// Draws pictures and writes them as destination/train/<class>/*.jpg and
/// destination/val/<class>/*.jpg, to try a config or a machine where the real ones are not. A class
/// is a shape, two colours and a grid behind it; place, size, light and noise are random, so that
/// it can be learned, and not by heart. Pictures are the same for any number of threads.
/// Error(kUsage) where the folder has something in it already.
ExampleReport write_example_tree(const ExampleTree& tree, const PrepareWatch& watch);

}  // namespace starling
