#pragma once

#include <cstdint>

#include "core/backend.h"

namespace starling {

/// Settings of fp16's loss scale; semantics.md section 2.
struct LossScaleSettings {
  double initial = 65536.0;
  std::int64_t growth_interval =
      2000;  ///< consecutive steps without overflow after which the scale doubles
  /// A scale below this means that training has diverged
  double least = 0x1p-14;
};

/// The loss scale's state in checkpoints.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t clean_steps = 0;  ///< since the last change of the scale
  /// s of the next update: 1 + the number of updates that were not skipped
  std::int64_t optimizer_step = 1;
  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

/// Dynamic loss scaling on one rank. The device determines whether a step's gradients overflowed.
/// The host gets the result while the next forward pass is issued, and waits for it only when the
/// backward pass needs the scale. With graphs it waits for the preceding step.
class LossScaler {
 public:
  explicit LossScaler(const LossScaleSettings& settings = {})
      : settings_(settings), state_{settings.initial, 0, 1} {}
  ~LossScaler();
  LossScaler(const LossScaler&) = delete;
  LossScaler& operator=(const LossScaler&) = delete;

  /// Called after issuing the update of step `step` (1, 2, …). `control`: Algorithm::control().
  void posted(const Tensor& control, std::int64_t step);
  /// Waits for the pending result, if any, and adjusts the scale.
  const LossScaleState& settle();
  /// Continues from a checkpoint.
  void restore(const LossScaleState& state) { state_ = state; }

  /// The first step after which the scale was below `least`; -1: none.
  std::int64_t diverged_step() const { return diverged_step_; }

 private:
  LossScaleSettings settings_;
  LossScaleState state_;
  Backend* pending_ = nullptr;  ///< of the pending copy; null: none
  Event arrival_;
  double answer_[2] = {1.0, 0.0};
  std::int64_t step_ = 0, diverged_step_ = -1;
};

}  // namespace starling
