#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/backend.h"
#include "core/choosing_graph.h"

namespace starling {

/// How the loss scale of fp16 moves; semantics.md section 2.
struct LossScaleSettings {
  double initial = 65536.0;
  std::int64_t growth_interval = 2000;  ///< clean steps in a row after which the scale doubles
  double least = 0x1p-14;               ///< a scale below it means that no scale helps: training has diverged
};

/// What a checkpoint keeps of it.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t clean_steps = 0;     ///< since the scale last changed
  std::int64_t optimizer_step = 1;  ///< s of the next update: updates that were not skipped, and one
  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

/// The states that the next step may begin with while answers are on their way, and how the device tells which: ValueChoices' table.
struct ScaleChoices {
  std::vector<LossScaleState> states;
  std::array<std::int32_t, 2 * ValueChoices::kMost> table{};
};

/// Dynamic loss scaling of one rank. Whether a step's gradients overflowed is known on the device; the answer is on its way to the host
/// while the next forward pass is issued, and waited for only when its backward pass needs the scale. So the device never runs dry. A graph
/// needs the scale at its launch: there the device chooses among the states that are possible (choices()), and nobody waits.
class LossScaler {
 public:
  explicit LossScaler(const LossScaleSettings& settings = {}) : settings_(settings), state_{settings.initial, 0, 1} {}
  ~LossScaler();
  LossScaler(const LossScaler&) = delete;
  LossScaler& operator=(const LossScaler&) = delete;

  /// After the update of step `step` (1, 2, …) was issued: `control` is the algorithm's answer, see Algorithm::control().
  void posted(const Tensor& control, std::int64_t step);
  /// Waits for the answers that are on their way, and moves the scale.
  const LossScaleState& settle();
  /// In place of settle(): what the step that comes may begin with. The host waits only where more than kMostUnknown steps are not through.
  ScaleChoices choices();
  static constexpr std::size_t kMostUnknown = 3;  ///< 2^3 states at most
  /// Continues from a checkpoint.
  void restore(const LossScaleState& state) {
    state_ = state;
    last_.clear();
  }

  /// The first step after which the scale was below the least; -1 if none was.
  std::int64_t diverged_step() const { return diverged_step_; }

 private:
  /// An answer on its way.
  struct Answer {
    Backend* backend = nullptr;
    Event arrival;
    std::array<double, 2> numbers{1.0, 0.0};
    std::int64_t step = 0;
  };
  LossScaleState after(LossScaleState state, bool overflow) const;
  /// Waits for the oldest.
  void take_answer();

  LossScaleSettings settings_;
  LossScaleState state_;              ///< after all answers that have been taken
  std::deque<Answer> pending_;        ///< in the order of their steps; a deque, since copies write into its elements
  std::vector<LossScaleState> last_;  ///< the states of the last choices(); empty: the step began with one that was known
  bool chosen_ = false;               ///< choices() were given for the step that comes
  std::int64_t diverged_step_ = -1;
};

}  // namespace starling
