#pragma once

#include "layers/layer.h"

namespace starling {

/// {H, W, C} → {C}: the mean over all pixels.
class GlobalAvgPool : public Layer {
 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;
};

}  // namespace starling
