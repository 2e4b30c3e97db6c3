#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/dataset.h"

namespace starling {

/// The key `val_fraction`, a share of the samples that is for tests: 0 where these have files of
/// their own (`val_path`), and Error(kUsage) where another is given then.
double read_val_fraction(ConfigSection& section, bool own_tests, double usual,
                         const std::string& doc);

/// What data.val_fraction draws tests from: training samples, numbered from 0.
struct TestDraw {
  std::int64_t samples = 0, classes = 1;
  std::function<std::int64_t(std::int64_t)> label;
  /// Decides with the seed, so that other samples that come or go change nothing.
  std::function<std::string(std::int64_t)> name;
  std::uint64_t seed = 1;
  double fraction = 0.0;
  std::string by = {};                 ///< TestShare's
  std::optional<TestShare> kept = {};  ///< takes the place of seed and fraction
  // For lines and errors
  std::int64_t limit = 0;  ///< of tests that are taken in the end; 0: all
  std::string who, noun, where, too_small;
};

/// Numbers of samples, ascending.
struct DrawnTests {
  std::vector<std::int64_t> train, test;
  TestShare share;
};
/// Sets a share of each class aside, rounded to whole samples, but one is left to train on.
/// Error(kUsage) where none is set aside.
DrawnTests draw_tests(const TestDraw& draw);

}  // namespace starling
