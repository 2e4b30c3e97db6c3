#include "core/operations/checker.h"

namespace starling {

void Checker::has(const Tensor& x, const char* name, std::int64_t elements, DType dtype) const {
  there(x, name);
  that(x.elements() == elements, "{} must have {} elements, not {}", name, elements, x.elements());
  that(x.dtype() == dtype, "{} is {}; needed: {}", name, name_of(x.dtype()), name_of(dtype));
}

Checker::Matrix Checker::matrix(const Tensor& x, const char* name) const {
  floating(x, name);
  that(x.shape().rank() >= 2 && x.shape().back() > 0, "{} must have two or more dimensions, not {}",
       name, x.shape().text());
  return {x.elements() / x.shape().back(), x.shape().back()};
}

}  // namespace starling
