#pragma once

#include "layers/layer.h"

namespace starling {

/// Any shape → {elements}; images in PyTorch's order C, H, W whatever the memory layout, so that weights of a following linear layer fit
/// both.
class Flatten : public Layer {
 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;
};

}  // namespace starling
