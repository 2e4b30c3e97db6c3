#pragma once

#include "core/autograd.h"
#include "core/tensor.h"

// What a pass in training may tell its batch norms, as extensions of it.
namespace starling {

/// Sums over ranks, from which batch norms take the statistics of all ranks' batches; without it
/// each takes those of its own.
class RankSums : public PassExtension {
 public:
  virtual int ranks() const = 0;
  /// `numbers` become their sum over all ranks, in rank order. Collective: all ranks call it for
  /// the same things in the same order. What is issued to the current stream afterwards reads the
  /// sum.
  virtual void sum(const Tensor& numbers) = 0;
};

/// Momentum of every batch norm's running statistics, in place of its own.
class NormMomentum final : public PassExtension {
 public:
  explicit NormMomentum(double momentum) : value(momentum) {}
  double value;
};

}  // namespace starling
