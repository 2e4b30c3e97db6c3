#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "core/tensor.h"

namespace starling {

/// A tensor's numbers in another order, without a copy: element (i, j, …) of the view is the
/// tensor's element first + i·stride(0) + j·stride(1) + …. Heads of a Transformer are one of
/// N×T×(3·H·D): View(x).slice(2, 0, H·D).split(2, D).transposed(1, 2) is the queries' N×H×T×D.
class View {
 public:
  View() = default;
  /// All of a tensor, as it lies.
  View(const Tensor& tensor);  // NOLINT(google-explicit-constructor): every tensor is a view
  /// Of these sizes and strides, one for each dimension and none negative, from element `first` on.
  View(Tensor tensor, const Shape& shape, std::initializer_list<std::int64_t> strides,
       std::int64_t first);

  explicit operator bool() const { return static_cast<bool>(tensor_); }
  const Tensor& tensor() const { return tensor_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return tensor_.dtype(); }
  std::int64_t elements() const { return shape_.elements(); }
  /// Elements of the tensor from one place of dimension d to the next.
  std::int64_t stride(int d) const { return stride_[static_cast<std::size_t>(d)]; }
  std::int64_t first() const { return first_; }
  /// Elements of the tensor from the first to the last that is seen, both counted.
  std::int64_t reach() const;
  /// True where element after element lies side by side, as in a tensor.
  bool contiguous() const;
  /// The tensor that this view is. Error(kInternal) where it is not contiguous.
  Tensor whole() const;
  /// The first element's address; as of Tensor::data().
  template <class T>
  T* data() const {
    return tensor_.data<T>() + first_;
  }
  std::byte* raw() const;

  // Errors are Error(kInternal), for a dimension or a range outside the shape or the tensor.

  /// With dimensions a and b exchanged.
  View transposed(int a, int b) const;
  /// `count` places of dimension d from `begin` on.
  View slice(int d, std::int64_t begin, std::int64_t count) const;
  /// Dimension d as two, of which the inner one has `inner` places.
  View split(int d, std::int64_t inner) const;
  /// The same places of another tensor, which has as many elements.
  View of(const Tensor& tensor) const;

 private:
  void check_dimension(int d) const;

  Tensor tensor_;
  Shape shape_;
  std::array<std::int64_t, Shape::kMaxRank> stride_{};
  std::int64_t first_ = 0;
};

}  // namespace starling
