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
  pass.backend.embedding_forward({.tokens = tokens, .table = table.operand(), .y = y});
  return pass.record("embedding", std::move(y), {}, {&table}, [tokens](Gradients& g) {
    const Gradients::Target d = g.parameter(0);
    if (d)
      g.backend().embedding_backward(
          {.tokens = tokens, .dy = g.output(), .dtable = d.tensor, .accumulate = d.accumulate});
  });
}

}  // namespace starling::functions
