#include "layers/builtin.h"
#include "layers/functions.h"

namespace starling {

namespace {

/// Zeroes values with probability p in training and scales the others by 1/(1 - p) (Srivastava et al. 2014).
class DropoutLayer : public Layer {
 public:
  explicit DropoutLayer(double p) : p_(p) {}

 protected:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override { return functions::dropout(x, p_, pass); }

 private:
  double p_;
};

}  // namespace

void builtin::add_dropout(LayerRegistry& registry) {
  registry.add(
      "dropout",
      [](ConfigSection& section) {
        return std::make_unique<DropoutLayer>(section.number("p", 0.5, Range::half_open(0, 1), "probability that a value becomes 0"));
      },
      "random zeros in training");
}

}  // namespace starling
