#include <fmt/format.h>

#include "core/operations/indexing.h"
#include "tests/operations/rows.h"

namespace starling::tests {

Operation embedding(Index tokens, Index rows, Index columns) {
  Operation op;
  op.exact = true;
  op.name = fmt::format("embedding of {} tokens, {}x{}", tokens, rows, columns);
  op.inputs = {{tokens}, {rows, columns}};
  op.outputs = {{tokens, columns}};
  op.input_roles = {Role::kIndex, Role::kWeight};
  op.bounds = {rows, 0};
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.embedding_forward({.tokens = in[0], .table = in[1], .y = out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < tokens * columns; ++i) {
      out[0][at(i)] = in[1][at(static_cast<Index>(in[0][at(i / columns)]) * columns + i % columns)];
    }
  };
  op.backward = [](Backend& b, const Tensors& in, const Tensors&, const Tensors&, const Tensor& dy,
                   const Tensors& d) {
    b.embedding_backward({.tokens = in[0], .dy = dy, .dtable = d[1]});
  };
  return op;
}

}  // namespace starling::tests
