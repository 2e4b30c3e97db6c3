#pragma once

#include "layers/functions.h"
#include "layers/layer.h"

namespace starling {

/// A function of every value alone.
class ActivationLayer : public Layer {
 public:
  explicit ActivationLayer(Activation kind) : kind_(kind) {}
  Activation kind() const { return kind_; }

 protected:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override { return functions::activation(x, kind_, pass); }

 private:
  Activation kind_;
};

}  // namespace starling
