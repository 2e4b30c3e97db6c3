#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "core/tensor.h"

namespace starling {

/// A strided view of a tensor: element (i, j, …) of the view is the tensor's element first +
/// i·stride(0) + j·stride(1) + …. For example the queries N×H×T×D in a Transformer's N×T×(3·H·D)
/// are View(x).slice(2, 0, H·D).split(2, D).transposed(1, 2).
class View {
 public:
  View() = default;
  /// The whole tensor.
  View(const Tensor& tensor);  // NOLINT(google-explicit-constructor): every tensor is a view
  /// With a nonnegative stride for each dimension of `shape`, starting at element `first`.
  View(Tensor tensor, const Shape& shape, std::initializer_list<std::int64_t> strides,
       std::int64_t first);

  explicit operator bool() const { return static_cast<bool>(tensor_); }
  const Tensor& tensor() const { return tensor_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return tensor_.dtype(); }
  std::int64_t elements() const { return shape_.elements(); }
  /// Distance in elements between adjacent indices of dimension d.
  std::int64_t stride(int d) const { return stride_[static_cast<std::size_t>(d)]; }
  std::int64_t first() const { return first_; }
  /// Number of elements from the first to the last one of the view, inclusive.
  std::int64_t reach() const;
  /// Whether elements are adjacent in memory, as in a tensor.
  bool contiguous() const;
  /// A contiguous view as a tensor; otherwise Error(kInternal).
  Tensor whole() const;
  /// The first element's address; as of Tensor::data().
  template <class T>
  T* data() const {
    return tensor_.data<T>() + first_;
  }
  std::byte* raw() const;

  // Error(kInternal) if a dimension or range is outside the shape or the tensor.

  /// Swaps dimensions a and b.
  View transposed(int a, int b) const;
  /// Restricts dimension d to `count` indices from `begin` on.
  View slice(int d, std::int64_t begin, std::int64_t count) const;
  /// Splits dimension d into two, the inner one of size `inner`.
  View split(int d, std::int64_t inner) const;
  /// The same view of another tensor with as many elements.
  View of(const Tensor& tensor) const;

 private:
  void check_dimension(int d) const;

  Tensor tensor_;
  Shape shape_;
  std::array<std::int64_t, Shape::kMaxRank> stride_{};
  std::int64_t first_ = 0;
};

}  // namespace starling
