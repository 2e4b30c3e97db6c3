#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/operations/map.h"

// Programs of maps that are put together while a pass runs: of chains of functions, and of their
// gradients.
namespace starling {

/// An expression that grows. Equal steps and numbers stand in it once. Where something has no room
/// left, fits() is false from then on and slots mean nothing.
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

  /// Steps take the one slot where they took the other.
  void replace(Slot from, Slot to);
  /// Whether a step takes it.
  bool takes(Slot slot) const;

  /// Drops all steps that none of these slots needs, the last of which is a step's result. The
  /// slots are told where they are afterwards.
  void keep(std::span<Slot> slots);

 private:
  Expression expression_;
  std::size_t tensors_ = 0, numbers_ = 0;
  bool fits_ = true;
};

/// Where an expression's gradients lie: the slot of each tensor's, or none where it has none.
using GradientSlots = std::array<std::optional<ExpressionBuilder::Slot>, kMapTensors>;

/// Adds to `program`, an expression whose result is its last step's, the gradients in its first
/// tensors that are `wanted`. `dy` is the slot of the result's gradient.
GradientSlots differentiate(ExpressionBuilder& program, ExpressionBuilder::Slot dy,
                            const std::array<bool, kMapTensors>& wanted);

}  // namespace starling
