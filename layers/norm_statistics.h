#pragma once

#include "core/autograd.h"
#include "core/tensor.h"

// What a pass in training may tell its batch norms, as extensions of it.
namespace starling {

/// Sums over ranks, for synchronised batch norms. Without it each rank uses its own statistics.
class RankSums : public PassExtension {
 public:
  virtual int ranks() const = 0;
  /// `numbers` become their sum over all ranks, in rank order. Collective: all ranks call it for
  /// the same things in the same order. What is issued to the current stream afterwards reads the
  /// sum.
  virtual void sum(const Tensor& numbers) = 0;
};

/// Overrides the momentum of every batch norm's running statistics.
class NormMomentum final : public PassExtension {
 public:
  explicit NormMomentum(double momentum) : value(momentum) {}
  double value;
};

}  // namespace starling
