#pragma once

#include "core/autograd.h"
#include "core/tensor.h"

// Extensions of a training pass that change the statistics of batch norms.
namespace starling {

/// Sums over ranks, for synchronised batch norms. Without it each rank uses its own statistics.
class RankSums : public PassExtension {
 public:
  virtual int ranks() const = 0;
  /// Replaces `numbers` by their sum over all ranks, in rank order. Collective: all ranks must make
  /// the same calls in the same order. Work issued to the current stream afterwards reads the sum.
  virtual void sum(const Tensor& numbers) = 0;
};

/// Overrides the momentum of every batch norm's running statistics.
class NormMomentum final : public PassExtension {
 public:
  explicit NormMomentum(double momentum) : value(momentum) {}
  double value;
};

}  // namespace starling
