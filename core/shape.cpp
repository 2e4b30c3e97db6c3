#include "core/shape.h"

#include "core/error.h"

namespace starling {

Shape::Shape(std::span<const std::int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
  require(sizes.size() <= kMaxRank, "tensor", "a shape has {} dimensions, at most {} are possible",
          sizes.size(), static_cast<int>(kMaxRank));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    require(sizes[i] >= 0, "tensor", "dimension {} of a shape is {}, it must not be negative", i,
            sizes[i]);
    sizes_[i] = sizes[i];
  }
}

std::int64_t Shape::elements() const {
  // Sizes come from configs too; the limit keeps every count of bytes within 64 bits.
  constexpr std::int64_t kMaxElements = std::int64_t{1} << 59;
  std::int64_t product = 1;
  for (const std::int64_t size : sizes()) {
    if (__builtin_mul_overflow(product, size, &product) || product > kMaxElements) {
      fail(ExitCode::kMemory, "tensor",
           "a {} tensor is larger than any memory; choose smaller sizes", text());
    }
  }
  return product;
}

Shape Shape::with_batch(std::int64_t n) const {
  require(rank_ < kMaxRank, "tensor", "shape {} has no room for a batch dimension", text());
  Shape result;
  result.rank_ = rank_ + 1;
  result.sizes_[0] = n;
  for (int i = 0; i < rank_; ++i) result[i + 1] = (*this)[i];
  return result;
}

Shape Shape::without_batch() const {
  require(rank_ > 0, "tensor", "a scalar has no batch dimension");
  return Shape(sizes().subspan(1));
}

Shape Shape::with_last(std::int64_t n) const {
  require(rank_ < kMaxRank, "tensor", "shape {} has no room for one more dimension", text());
  Shape result = *this;
  result.sizes_[static_cast<std::size_t>(result.rank_++)] = n;
  return result;
}

std::string Shape::text() const {
  if (rank_ == 0) return "scalar";
  std::string result;
  for (int i = 0; i < rank_; ++i) result += (i ? "×" : "") + std::to_string((*this)[i]);
  return result;
}

}  // namespace starling
