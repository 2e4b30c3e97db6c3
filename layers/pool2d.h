#pragma once

#include "layers/layer.h"

namespace starling {

/// The largest value or the mean of every window, per channel: {H, W, C} → {P, Q, C}. Sizes round down, as in PyTorch by default.
class Pool2d : public Layer {
 public:
  Pool2d(Pooling kind, const Window2d& window) : kind_(kind), window_(window) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  Pooling kind_;
  Window2d window_;
};

}  // namespace starling
