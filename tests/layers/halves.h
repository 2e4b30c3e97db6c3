#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "layers/functions.h"
#include "layers/layer.h"

namespace starling::tests {

/// A layer of two values that takes them as the halves of one.
class Halves final : public Layer {
 public:
  explicit Halves(std::unique_ptr<Layer> child) : pending_(std::move(child)) {}

 private:
  Shape build(const Shape& input) override {
    const Shape half{input[0] / 2};
    const std::vector<Shape> halves{half, half};
    child_ = &add_child("", std::move(pending_), Shapes(halves));
    return child_->output_shape();
  }
  Variable compute(const Variable& x, Pass& pass) override {
    const std::int64_t half = x.shape()[1] / 2;
    return child_->forward(Values(functions::split(x, {half, half}, 1, pass)), pass);
  }
  std::unique_ptr<Layer> pending_;
  Layer* child_ = nullptr;
};

}  // namespace starling::tests
