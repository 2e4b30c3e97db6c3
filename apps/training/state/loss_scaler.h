#pragma once

#include <cstdint>

#include "core/backend.h"

namespace starling {

/// How the loss scale of fp16 moves; semantics.md section 2.
struct LossScaleSettings {
  double initial = 65536.0;
  std::int64_t growth_interval = 2000;  ///< clean steps in a row after which the scale doubles
  /// A scale below it means that no scale helps: training has diverged
  double least = 0x1p-14;
};

/// What a checkpoint keeps of the loss scale.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t clean_steps = 0;  ///< since the scale last changed
  /// S of the next update: updates that were not skipped, and one
  std::int64_t optimizer_step = 1;
  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

/// Dynamic loss scaling of one rank. Whether a step's gradients overflowed is known on the device;
/// the answer is on its way to the host while the next forward pass is issued, and waited for only
/// when its backward pass needs the scale. So the device does not run dry where steps are issued. A
/// graph needs the scale when it is launched: the host waits for the step before.
class LossScaler {
 public:
  explicit LossScaler(const LossScaleSettings& settings = {})
      : settings_(settings), state_{settings.initial, 0, 1} {}
  ~LossScaler();
  LossScaler(const LossScaler&) = delete;
  LossScaler& operator=(const LossScaler&) = delete;

  /// Called after the update of step `step` (1, 2, …) was issued: `control` is the algorithm's
  /// answer, see Algorithm::control().
  void posted(const Tensor& control, std::int64_t step);
  /// Waits for the answer, if one is on its way, and moves the scale.
  const LossScaleState& settle();
  /// Continues from a checkpoint.
  void restore(const LossScaleState& state) { state_ = state; }

  /// The first step after which the scale was below the least; -1 if none was.
  std::int64_t diverged_step() const { return diverged_step_; }

 private:
  LossScaleSettings settings_;
  LossScaleState state_;
  Backend* pending_ = nullptr;  ///< whose copy is on its way
  Event arrival_;
  double answer_[2] = {1.0, 0.0};
  std::int64_t step_ = 0, diverged_step_ = -1;
};

}  // namespace starling
