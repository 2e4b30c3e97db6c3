#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace starling::test {

/// The numbers of each rank.
using NumbersOfRanks = std::vector<std::vector<double>>;

/// The largest |a - b|, where numbers are above 1 relative to them; infinite where one is not a
/// number.
inline double largest_difference(const NumbersOfRanks& a, const NumbersOfRanks& b) {
  double largest = 0.0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    for (std::size_t e = 0; e < a[i].size(); ++e) {
      const double difference =
          std::abs(a[i][e] - b[i][e]) / std::max({1.0, std::abs(a[i][e]), std::abs(b[i][e])});
      if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
      largest = std::max(largest, difference);
    }
  }
  return largest;
}

inline std::vector<double> mean_of(const NumbersOfRanks& x) {
  std::vector<double> mean(x[0].size(), 0.0);
  for (const auto& of_rank : x) {
    for (std::size_t e = 0; e < mean.size(); ++e)
      mean[e] += of_rank[e] / static_cast<double>(x.size());
  }
  return mean;
}

}  // namespace starling::test
