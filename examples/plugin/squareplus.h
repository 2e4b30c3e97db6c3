#pragma once

#include <cmath>

#include <starling/functions.h>

// A custom pointwise function. A line in mine.cpp makes it a layer, squareplus.cu a kernel.
namespace mine {

/// A smooth ReLU without exponentials (arXiv 2112.11687).
struct Squareplus {
  static constexpr const char* kName = "squareplus";
  static constexpr const char* kSummary = "(x + √(x² + 4)) / 2";

  template <class T>
  STARLING_HD static T value(T x) {
    return (x + std::sqrt(x * x + 4)) / 2;
  }
  template <class T>
  STARLING_HD static T derivative(T x, T y) {
    return y / (2 * y - x);
  }
};

}  // namespace mine
