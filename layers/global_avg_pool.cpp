#include "layers/global_avg_pool.h"

#include "layers/builtin.h"
#include "layers/functions.h"

namespace starling {

Shape GlobalAvgPool::build(const Shape& input) {
  if (input.rank() != 3) bad_shape(input, "an image H×W×C");
  return {input[2]};
}

Variable GlobalAvgPool::compute(const Variable& x, Pass& pass) { return functions::global_avg_pool(x, pass); }

void builtin::add_global_avg_pool(LayerRegistry& registry) {
  registry.add(
      "global_avg_pool", [](ConfigSection&) { return std::make_unique<GlobalAvgPool>(); }, "mean of every channel, as a vector");
}

}  // namespace starling
