#include "apps/trainer/state/loss_scaler.h"

#include <algorithm>
#include <exception>

#include "core/error.h"

namespace starling {

LossScaler::~LossScaler() {
  try {
    for (const Answer& answer : pending_) answer.backend->synchronize(answer.arrival);  // the copies write into this object
  } catch (const std::exception&) {
    // The device is lost: nothing will be written any more.
  }
}

void LossScaler::posted(const Tensor& control, std::int64_t step) {
  require(pending_.empty() || chosen_, "loss scale", "step {} was posted before the one before it was settled", step);
  if (!control || control.dtype() != DType::kFloat64 || control.elements() != 2) {
    fail(ExitCode::kUsage, "loss scale",
         "sync.algorithm does not say whether step {} overflowed, which fp16 needs to know (Algorithm::control()); use bf16 or fp32", step);
  }
  chosen_ = false;
  Answer& answer = pending_.emplace_back();
  answer.backend = &control.backend();
  answer.step = step;
  answer.arrival = answer.backend->copy_to_host_later(control, answer.numbers.data());
}

LossScaleState LossScaler::after(LossScaleState state, bool overflow) const {
  if (overflow) {
    // Not below least / 2, which says as much as less would: the row may go on for long before somebody looks, and 0 has no inverse.
    state.scale = std::max(state.scale / 2.0, settings_.least / 2.0);
    state.clean_steps = 0;
    return state;
  }
  ++state.optimizer_step;
  if (++state.clean_steps >= settings_.growth_interval) {
    state.scale *= 2.0;
    state.clean_steps = 0;
  }
  return state;
}

void LossScaler::take_answer() {
  const Answer& answer = pending_.front();
  answer.backend->synchronize(answer.arrival);
  const bool overflow = answer.numbers[1] != 0.0;
  state_ = after(state_, overflow);
  if (overflow && state_.scale < settings_.least && diverged_step_ < 0) diverged_step_ = answer.step;
  pending_.pop_front();
}

const LossScaleState& LossScaler::settle() {
  while (!pending_.empty()) take_answer();
  last_.clear();
  return state_;
}

ScaleChoices LossScaler::choices() {
  while (!pending_.empty() && (pending_.size() > kMostUnknown || pending_.front().backend->done(pending_.front().arrival))) take_answer();
  const auto place_in = [](const std::vector<LossScaleState>& states, const LossScaleState& state) {
    return static_cast<std::size_t>(std::find(states.begin(), states.end(), state) - states.begin());
  };
  const auto add = [&](std::vector<LossScaleState>& states, const LossScaleState& state) {
    if (place_in(states, state) == states.size()) states.push_back(state);
  };
  // What the step before may have begun with, by what is known now.
  std::vector<LossScaleState> before{state_};
  for (std::size_t unknown = 1; unknown < pending_.size(); ++unknown) {
    std::vector<LossScaleState> next;
    for (const LossScaleState& state : before) {
      for (const bool overflow : {false, true}) add(next, after(state, overflow));
    }
    before = std::move(next);
  }
  ScaleChoices result;
  if (pending_.empty()) {
    result.states = before;  // and every place leads to it
  } else {
    for (const LossScaleState& state : before) {
      for (const bool overflow : {false, true}) add(result.states, after(state, overflow));
    }
    for (std::size_t place = 0; place < ValueChoices::kMost; ++place) {
      // Where the step before began with a known state, the device's place is of an earlier choice, whichever.
      const LossScaleState& state = last_.empty() ? before.front() : last_[std::min(place, last_.size() - 1)];
      if (place_in(before, state) == before.size()) continue;  // known by now not to have been
      for (const bool overflow : {false, true}) {
        result.table[2 * place + (overflow ? 1 : 0)] = static_cast<std::int32_t>(place_in(result.states, after(state, overflow)));
      }
    }
  }
  last_ = result.states;
  chosen_ = true;
  return result;
}

}  // namespace starling
