#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace starling {

/// Sizes of a tensor's dimensions, outermost first; at most kMaxRank of them, held inline. Rank 0
/// is a scalar.
class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes)
      : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const std::int64_t> sizes);

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return sizes_[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return sizes_[static_cast<std::size_t>(i)]; }
  std::int64_t back() const { return sizes_[static_cast<std::size_t>(rank_ - 1)]; }
  /// The product of the sizes. Error(kMemory) past 2^59, so that bytes never overflow.
  std::int64_t elements() const;
  std::span<const std::int64_t> sizes() const {
    return {sizes_.data(), static_cast<std::size_t>(rank_)};
  }

  /// With a leading dimension of size n added.
  Shape with_batch(std::int64_t n) const;
  /// Without the first dimension.
  Shape without_batch() const;
  /// With a trailing dimension of size n added.
  Shape with_last(std::int64_t n) const;

  /// "128×32×32×3"; "scalar" for rank 0.
  std::string text() const;

  friend bool operator==(const Shape& a, const Shape& b) = default;

 private:
  // Entries past rank_ stay 0, so that == compares whole objects
  std::array<std::int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

}  // namespace starling
