#include <utility>

#include "core/error.h"
#include "core/operations/indexing.h"
#include "layers/functions.h"

namespace starling::functions {

Variable embedding(const Tensor& tokens, Parameter& table, Pass& pass) {
  require(tokens && tokens.dtype() == DType::kInt32, "embedding",
          "the tokens must be an int32 tensor");
  require(table.shape.rank() == 2, "embedding", "the table is {}, not rows×columns",
          table.shape.text());
  Tensor y(pass.backend, tokens.shape().with_last(table.shape[1]), table.operand().dtype());
  const Shape rows{1, table.shape[0], table.shape[1]}, taken{1, tokens.elements(), table.shape[1]};
  pass.backend.gather(
      {.x = table.operand().reshaped(rows), .index = tokens, .y = y.reshaped(taken)});
  return pass.record("embedding", std::move(y), {}, {&table}, [tokens, rows, taken](Gradients& g) {
    if (const Gradients::Target d = g.parameter(0)) {
      g.backend().scatter_add({.x = g.output().reshaped(taken),
                               .index = tokens,
                               .y = d.tensor.reshaped(rows),
                               .accumulate = d.accumulate});
    }
  });
}

}  // namespace starling::functions
