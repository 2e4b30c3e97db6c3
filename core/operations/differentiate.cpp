#include "core/operations/differentiate.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace starling {

using Slot = ExpressionBuilder::Slot;

namespace {
constexpr std::size_t result_slot(int step) {
  return std::size_t{kMapResults} + static_cast<std::size_t>(step);
}
}  // namespace

Slot ExpressionBuilder::tensor(const Tensor& tensor) {
  fits_ = fits_ && tensors_ < expression_.in.size();
  if (!fits_) return 0;
  expression_.in[tensors_] = tensor;
  return static_cast<Slot>(tensors_++);
}

Slot ExpressionBuilder::number(double number) {
  for (std::size_t i = 0; i < numbers_; ++i) {
    // Equal bits alone: 0 and -0 differ, and NaN is itself.
    if (std::bit_cast<std::uint64_t>(expression_.numbers[i]) ==
        std::bit_cast<std::uint64_t>(number))
      return static_cast<Slot>(kMapNumbers + i);
  }
  fits_ = fits_ && numbers_ < expression_.numbers.size();
  if (!fits_) return 0;
  expression_.numbers[numbers_] = number;
  return static_cast<Slot>(kMapNumbers + numbers_++);
}

Slot ExpressionBuilder::step(MapFunction function, Slot a, Slot b) {
  for (int s = 0; s < expression_.count; ++s) {
    const MapStep& other = expression_.steps[static_cast<std::size_t>(s)];
    if (other.function == function && other.a == a && other.b == b)
      return static_cast<Slot>(kMapResults + s);
  }
  fits_ = fits_ && expression_.count < kMapMostSteps;
  if (!fits_) return 0;
  expression_.steps[static_cast<std::size_t>(expression_.count)] = {function, a, b};
  return static_cast<Slot>(kMapResults + expression_.count++);
}

void ExpressionBuilder::replace(Slot from, Slot to) {
  for (MapStep& step : std::span(expression_.steps).first(static_cast<std::size_t>(steps()))) {
    if (step.a == from) step.a = to;
    if (step.b == from) step.b = to;
  }
}

bool ExpressionBuilder::takes(Slot slot) const {
  const auto all = std::span(expression_.steps).first(static_cast<std::size_t>(steps()));
  return std::any_of(all.begin(), all.end(),
                     [&](const MapStep& step) { return step.a == slot || step.b == slot; });
}

void ExpressionBuilder::keep(std::span<Slot> slots) {
  std::array<bool, kMapSlots> needed{};
  for (const Slot slot : slots) needed[slot] = true;
  for (int s = expression_.count; s-- > 0;) {
    const MapStep& step = expression_.steps[static_cast<std::size_t>(s)];
    if (needed[result_slot(s)]) needed[step.a] = needed[step.b] = true;
  }
  std::array<Slot, kMapSlots> place{};
  for (std::size_t k = 0; k < kMapResults; ++k) place[k] = static_cast<Slot>(k);
  int count = 0;
  for (int s = 0; s < expression_.count; ++s) {
    const auto slot = result_slot(s);
    if (!needed[slot]) continue;
    const MapStep& step = expression_.steps[static_cast<std::size_t>(s)];
    place[slot] = static_cast<Slot>(kMapResults + count);
    expression_.steps[static_cast<std::size_t>(count++)] = {step.function, place[step.a],
                                                            place[step.b]};
  }
  expression_.count = count;
  for (Slot& slot : slots) slot = place[slot];
}

namespace {

/// What a step hands back to its operands.
class Backward {
 public:
  Backward(ExpressionBuilder& program, std::array<bool, kMapSlots> wanted)
      : program_(program), wanted_(wanted) {}

  std::array<std::optional<Slot>, kMapSlots> gradient{};

  void run(const MapStep& step, Slot y) {
    const Slot a = step.a, b = step.b, dy = *gradient[y];
    switch (step.function) {
      case MapFunction::kAdd: return add(a, dy), add(b, dy);
      case MapFunction::kSubtract: return add(a, dy), add(b, MapFunction::kMultiply, dy, -1.0);
      case MapFunction::kMultiply:
        return add(a, MapFunction::kMultiply, dy, b), add(b, MapFunction::kMultiply, dy, a);
      case MapFunction::kDivide:
        add(a, MapFunction::kDivide, dy, b);
        if (wanted_[b]) {
          const Slot share = program_.step(MapFunction::kDivide, dy, b);
          add(b, MapFunction::kNegativeProduct, share, y);
        }
        return;
      case MapFunction::kPower:
        if (wanted_[a])
          add(a, MapFunction::kMultiply, program_.step(MapFunction::kPowerSlope, a, b), dy);
        if (wanted_[b])
          add(b, MapFunction::kMultiply, program_.step(MapFunction::kPowerLog, a, b), dy);
        return;
      case MapFunction::kMaximum: return share(a, a, b, dy), share(b, b, a, dy);
      case MapFunction::kMinimum: return share(a, b, a, dy), share(b, a, b, dy);
      case MapFunction::kWhere: return add(a, MapFunction::kWhere, dy, b);
      case MapFunction::kWhereNot: return add(a, MapFunction::kWhereNot, dy, b);
      case MapFunction::kClampLow: return pass(a, b, a, dy);
      case MapFunction::kClampHigh: return pass(a, a, b, dy);
      case MapFunction::kAbs: return scaled(a, MapFunction::kSign, dy);
      case MapFunction::kSquare:
        if (wanted_[a])
          add(a, MapFunction::kMultiply,
              program_.step(MapFunction::kMultiply, a, program_.number(2.0)), dy);
        return;
      case MapFunction::kExp: return add(a, MapFunction::kMultiply, dy, y);
      case MapFunction::kLog: return add(a, MapFunction::kDivide, dy, a);
      case MapFunction::kLog1p:
        if (wanted_[a])
          add(a, MapFunction::kDivide, dy,
              program_.step(MapFunction::kAdd, a, program_.number(1.0)));
        return;
      case MapFunction::kSqrt: return add(a, MapFunction::kSqrtGradient, y, dy);
      case MapFunction::kRsqrt: return add(a, MapFunction::kRsqrtGradient, y, dy);
      case MapFunction::kSin: return scaled(a, MapFunction::kCos, dy);
      case MapFunction::kCos:
        if (wanted_[a])
          add(a, MapFunction::kNegativeProduct, program_.step(MapFunction::kSin, a), dy);
        return;
      case MapFunction::kTanh: return add(a, MapFunction::kTanhGradient, y, dy);
      case MapFunction::kSigmoid: return add(a, MapFunction::kSigmoidGradient, y, dy);
      case MapFunction::kSoftplus: return scaled(a, MapFunction::kSigmoid, dy);
      case MapFunction::kErf: return add(a, MapFunction::kErfGradient, a, dy);
      case MapFunction::kRelu: return add(a, MapFunction::kReluGradient, y, dy);
      case MapFunction::kRelu6: return add(a, MapFunction::kRelu6Gradient, y, dy);
      case MapFunction::kGelu: return add(a, MapFunction::kGeluGradient, a, dy);
      case MapFunction::kGeluTanh: return add(a, MapFunction::kGeluTanhGradient, a, dy);
      case MapFunction::kSilu: return add(a, MapFunction::kSiluGradient, a, dy);
      // They are constant but for where they jump.
      case MapFunction::kEqual:
      case MapFunction::kNotEqual:
      case MapFunction::kLess:
      case MapFunction::kLessEqual:
      case MapFunction::kSign: return;
      // No function of theirs is called by a layer.
      case MapFunction::kReluGradient:
      case MapFunction::kRelu6Gradient:
      case MapFunction::kGeluGradient:
      case MapFunction::kGeluTanhGradient:
      case MapFunction::kSiluGradient:
      case MapFunction::kErfGradient:
      case MapFunction::kTanhGradient:
      case MapFunction::kSigmoidGradient:
      case MapFunction::kSqrtGradient:
      case MapFunction::kRsqrtGradient:
      case MapFunction::kPowerSlope:
      case MapFunction::kPowerLog:
      case MapFunction::kShare:
      case MapFunction::kNegativeProduct:
        fail(ExitCode::kInternal, "gradient", "a gradient's gradient is asked for");
    }
  }

 private:
  void add(Slot to, Slot term) {
    if (!wanted_[to]) return;
    gradient[to] = gradient[to] ? program_.step(MapFunction::kAdd, *gradient[to], term) : term;
  }
  void add(Slot to, MapFunction function, Slot a, Slot b) {
    if (wanted_[to]) add(to, program_.step(function, a, b));
  }
  void add(Slot to, MapFunction function, Slot a, double number) {
    if (wanted_[to]) add(to, function, a, program_.number(number));
  }
  /// dy times a function of the input.
  void scaled(Slot to, MapFunction slope, Slot dy) {
    if (wanted_[to]) add(to, MapFunction::kMultiply, program_.step(slope, to), dy);
  }
  /// Of the larger of two, all; of equal ones, half.
  void share(Slot to, Slot larger, Slot smaller, Slot dy) {
    if (wanted_[to])
      add(to, MapFunction::kMultiply, program_.step(MapFunction::kShare, larger, smaller), dy);
  }
  /// Where the first is not larger than the second.
  void pass(Slot to, Slot low, Slot high, Slot dy) {
    if (wanted_[to])
      add(to, MapFunction::kWhere, dy, program_.step(MapFunction::kLessEqual, low, high));
  }

  ExpressionBuilder& program_;
  std::array<bool, kMapSlots> wanted_;
};

}  // namespace

GradientSlots differentiate(ExpressionBuilder& program, Slot dy,
                            const std::array<bool, kMapTensors>& wanted) {
  // New steps are appended to those of the expression, which is traversed in reverse.
  const int count = program.steps();
  const Expression expression = program.expression();
  std::array<bool, kMapSlots> depends{};
  std::copy(wanted.begin(), wanted.end(), depends.begin());
  for (int s = 0; s < count; ++s) {
    const MapStep& step = expression.steps[static_cast<std::size_t>(s)];
    depends[result_slot(s)] = depends[step.a] || depends[step.b];
  }
  Backward backward(program, depends);
  backward.gradient[result_slot(count - 1)] = dy;
  for (int s = count; s-- > 0 && program.fits();) {
    const auto y = static_cast<Slot>(kMapResults + s);
    if (backward.gradient[y]) backward.run(expression.steps[static_cast<std::size_t>(s)], y);
  }
  GradientSlots result;
  for (std::size_t k = 0; k < result.size(); ++k)
    if (wanted[k]) result[k] = backward.gradient[k];
  return result;
}

}  // namespace starling
