#include "core/view.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace starling {

namespace {
std::size_t at(int d) { return static_cast<std::size_t>(d); }
}  // namespace

View::View(const Tensor& tensor) : tensor_(tensor), shape_(tensor.shape()) {
  std::int64_t step = 1;
  for (int d = shape_.rank(); d-- > 0; step *= shape_[d]) stride_[at(d)] = step;
}

View::View(Tensor tensor, const Shape& shape, std::initializer_list<std::int64_t> strides,
           std::int64_t first)
    : tensor_(std::move(tensor)), shape_(shape), first_(first) {
  std::copy(strides.begin(), strides.end(), stride_.begin());
  require(first >= 0 && reach() <= tensor_.elements() - first, "tensor",
          "a {} view of {} elements from element {} on lies outside a {} tensor", shape_.text(),
          reach(), first, tensor_.shape().text());
}

std::int64_t View::reach() const {
  if (elements() == 0) return 0;
  std::int64_t result = 1;
  for (int d = 0; d < shape_.rank(); ++d) result += (shape_[d] - 1) * stride(d);
  return result;
}

bool View::contiguous() const {
  std::int64_t step = 1;
  for (int d = shape_.rank(); d-- > 0; step *= shape_[d])
    if (shape_[d] != 1 && stride(d) != step) return false;
  return true;
}

Tensor View::whole() const {
  require(contiguous(), "tensor", "a {} view of a {} tensor does not lie in one piece",
          shape_.text(), tensor_.shape().text());
  return tensor_.slice(first_, shape_);
}

std::byte* View::raw() const {
  std::byte* start = tensor_.raw();
  return start ? start + static_cast<std::size_t>(first_) * size_of(dtype()) : nullptr;
}

void View::check_dimension(int d) const {
  require(d >= 0 && d < shape_.rank(), "tensor", "a {} view has no dimension {}", shape_.text(), d);
}

View View::transposed(int a, int b) const {
  check_dimension(a), check_dimension(b);
  View result = *this;
  std::swap(result.shape_[a], result.shape_[b]);
  std::swap(result.stride_[at(a)], result.stride_[at(b)]);
  return result;
}

View View::slice(int d, std::int64_t begin, std::int64_t count) const {
  check_dimension(d);
  require(begin >= 0 && count >= 0 && begin <= shape_[d] - count, "tensor",
          "places {} to {} lie outside dimension {} of a {} view", begin, begin + count, d,
          shape_.text());
  View result = *this;
  result.shape_[d] = count;
  // An empty view has no address: it may be outside of the tensor.
  if (count > 0) result.first_ += begin * stride(d);
  return result;
}

View View::split(int d, std::int64_t inner) const {
  check_dimension(d);
  require(inner > 0 && shape_[d] % inner == 0, "tensor",
          "dimension {} of a {} view is no whole number of {}", d, shape_.text(), inner);
  View result = *this;
  result.shape_ = shape_.with_last(1);
  for (int i = shape_.rank(); i > d + 1; --i) {
    result.shape_[i] = shape_[i - 1];
    result.stride_[at(i)] = stride(i - 1);
  }
  result.shape_[d] = shape_[d] / inner;
  result.stride_[at(d)] = stride(d) * inner;
  result.shape_[d + 1] = inner;
  result.stride_[at(d + 1)] = stride(d);
  return result;
}

View View::of(const Tensor& tensor) const {
  require(tensor.elements() == tensor_.elements(), "tensor", "a view of {} is not one of {}",
          tensor_.shape().text(), tensor.shape().text());
  View result = *this;
  result.tensor_ = tensor;
  return result;
}

}  // namespace starling
