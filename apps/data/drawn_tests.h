#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/data/dataset.h"

namespace starling {

/// Reads the key `val_fraction`, the share of the samples used as tests. Returns 0 if tests have
/// their own files (`val_path`), and throws Error(kUsage) if both are given.
double read_val_fraction(ConfigSection& section, bool own_tests, double usual,
                         const std::string& doc);

/// Input of draw_tests(): training samples, numbered from 0.
struct TestDraw {
  std::int64_t samples = 0, classes = 1;
  std::function<std::int64_t(std::int64_t)> label;
  /// The name that a sample's draw is made from together with the seed. Draws of other samples do
  /// not depend on it, so adding or removing samples leaves the rest of the split unchanged.
  std::function<std::string(std::int64_t)> name;
  std::uint64_t seed = 1;
  double fraction = 0.0;
  std::string by = {};                 ///< see TestShare::by
  std::optional<TestShare> kept = {};  ///< an existing split, used instead of seed and fraction
  // For lines and errors
  std::int64_t limit = 0;  ///< largest number of tests; 0: no limit
  std::string who, noun, where, too_small;
};

/// Sample numbers, ascending.
struct DrawnTests {
  std::vector<std::int64_t> train, test;
  TestShare share;
};
/// Where tests have their own files: the samples before the number `first` are for training.
DrawnTests own_tests(std::int64_t first, std::int64_t samples);
/// Chooses a share of each class as tests, rounded to whole samples; at least one sample remains
/// for training. Error(kUsage) if no test is chosen.
DrawnTests draw_tests(const TestDraw& draw);

}  // namespace starling
