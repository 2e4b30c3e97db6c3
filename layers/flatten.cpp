#include "layers/flatten.h"

#include "layers/builtin.h"
#include "layers/functions.h"

namespace starling {

Shape Flatten::build(const Shape& input) { return {input.elements()}; }

Variable Flatten::compute(const Variable& x, Pass& pass) { return functions::flatten(x, pass); }

void builtin::add_flatten(LayerRegistry& registry) {
  registry.add(
      "flatten", [](ConfigSection&) { return std::make_unique<Flatten>(); }, "any shape to a vector, in the order C, H, W");
}

}  // namespace starling
