#include "core/pending_norm.h"

namespace starling {

const Tensor& PendingNorm::value() {
  if (!value_) {
    value_ = Tensor(*backend_, norm_.x.shape(), norm_.x.dtype());
    backend_->scale_shift({.x = norm_.x, .scale = norm_.scale, .shift = norm_.shift, .y = value_, .relu = norm_.relu});
  }
  return value_;
}

}  // namespace starling
