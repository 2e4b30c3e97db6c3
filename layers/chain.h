#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "layers/layer.h"

namespace starling {

/// A layer of children that run one after another, under names of their own: build() adds them.
class Chain : public Layer {
 protected:
  /// Adds a child behind those before, named "" where it has no tensors of its own; returns the
  /// shape that it gives.
  Shape add_chain(const std::string& name, std::unique_ptr<Layer> layer, const Shape& input) {
    chain_.push_back(&add_child(name, std::move(layer), input));
    return chain_.back()->output_shape();
  }
  Variable run_chain(const Variable& x, Pass& pass) {
    Variable y = x;
    for (Layer* layer : chain_) y = layer->forward(y, pass);
    return y;
  }
  Variable compute(const Variable& x, Pass& pass) override { return run_chain(x, pass); }

 private:
  std::vector<Layer*> chain_;
};

}  // namespace starling
