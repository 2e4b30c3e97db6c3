#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/operations/map.h"

// Builds programs of maps during a pass: fused chains of functions, and their gradients.
namespace starling {

/// Builds an expression step by step. Equal steps and constants are shared. Once it exceeds the
/// limits fits() is false, and slots are meaningless.
class ExpressionBuilder {
 public:
  using Slot = std::uint8_t;

  ExpressionBuilder() = default;
  explicit ExpressionBuilder(const Expression& from)
      : expression_(from), tensors_(from.tensors()), numbers_(from.numbers.size()) {}

  Slot tensor(const Tensor& tensor);
  Slot number(double number);
  Slot step(MapFunction function, Slot a, Slot b);
  Slot step(MapFunction function, Slot a) { return step(function, a, a); }

  bool fits() const { return fits_; }
  int steps() const { return expression_.count; }
  std::size_t tensors() const { return tensors_; }
  std::size_t numbers() const { return numbers_; }
  const Expression& expression() const { return expression_; }

  /// Replaces an operand in all steps.
  void replace(Slot from, Slot to);
  /// Whether a step has this operand.
  bool takes(Slot slot) const;

  /// Drops all steps that these slots do not depend on, and updates the slots. The last one must be
  /// a step's result.
  void keep(std::span<Slot> slots);

 private:
  Expression expression_;
  std::size_t tensors_ = 0, numbers_ = 0;
  bool fits_ = true;
};

/// The slot of each tensor's gradient, if it has one.
using GradientSlots = std::array<std::optional<ExpressionBuilder::Slot>, kMapTensors>;

/// Appends to `program`, whose result is its last step, the gradients of the `wanted` tensors.
/// `dy`: the slot of the result's gradient.
GradientSlots differentiate(ExpressionBuilder& program, ExpressionBuilder::Slot dy,
                            const std::array<bool, kMapTensors>& wanted);

}  // namespace starling
