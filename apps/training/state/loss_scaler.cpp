#include "apps/training/state/loss_scaler.h"

#include <algorithm>
#include <exception>

#include "core/error.h"

namespace starling {

LossScaler::~LossScaler() {
  if (!pending_) return;
  try {
    pending_->synchronize(arrival_);  // the copy writes into this object
  } catch (const std::exception&) {
    // The device is lost: nothing will be written any more.
  }
}

void LossScaler::posted(const Tensor& control, std::int64_t step) {
  require(!pending_, "loss scale", "step {} was posted before the one before it was settled", step);
  if (!control || control.dtype() != DType::kFloat64 || control.elements() != 2) {
    fail(ExitCode::kUsage, "loss scale",
         "sync.algorithm does not say whether step {} overflowed, which fp16 needs to know "
         "(Algorithm::control()); use bf16 or fp32",
         step);
  }
  pending_ = &control.backend();
  step_ = step;
  arrival_ = pending_->copy_to_host_later(control, answer_);
}

const LossScaleState& LossScaler::settle() {
  if (!pending_) return state_;
  pending_->synchronize(arrival_);
  pending_ = nullptr;
  if (answer_[1] != 0.0) {
    // Not below least / 2, which says as much: the row may go on for long, and 0 has no inverse.
    state_.scale = std::max(state_.scale / 2.0, settings_.least / 2.0);
    state_.clean_steps = 0;
    if (state_.scale < settings_.least && diverged_step_ < 0) diverged_step_ = step_;
    return state_;
  }
  ++state_.optimizer_step;
  if (++state_.clean_steps >= settings_.growth_interval) {
    state_.scale *= 2.0;
    state_.clean_steps = 0;
  }
  return state_;
}

}  // namespace starling
