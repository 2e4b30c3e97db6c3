#include "layers/builtin.h"
#include "layers/functions.h"

namespace starling {

namespace {

/// Layer normalisation (Ba et al. 2016, arXiv 1607.06450) over the last dimension. Tensors: weight (1), bias (0).
class LayerNorm : public Layer {
 public:
  explicit LayerNorm(double eps) : eps_(eps) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() < 1) bad_shape(input, "at least one dimension");
    gamma_ = &add_parameter("weight", {input.back()}, Init::constant(1.0));
    beta_ = &add_parameter("bias", {input.back()}, Init::constant(0.0));
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override { return functions::layer_norm(x, *gamma_, *beta_, eps_, pass); }

 private:
  double eps_;
  Parameter* gamma_ = nullptr;
  Parameter* beta_ = nullptr;
};

}  // namespace

void builtin::add_layer_norm(LayerRegistry& registry) {
  registry.add(
      "layer_norm",
      [](ConfigSection& section) {
        return std::make_unique<LayerNorm>(section.number("eps", 1e-5, Range::positive(), "added to the variance"));
      },
      "normalises every sample over its last dimension");
}

}  // namespace starling
