#include <fmt/format.h>

#include "core/operations/indexing.h"
#include "tests/operations/rows.h"

namespace starling::tests {

Operation indexed(Index outer, Index n, Index rows, Index columns, bool each) {
  Operation op;
  op.exact = true;
  op.name = fmt::format("gather {} of {} rows of {}, {} times{}", n, rows, columns, outer,
                        each ? ", each number by its own" : "");
  op.inputs = {each ? Shape{outer, n, columns} : Shape{n}, {outer, rows, columns}};
  op.outputs = {{outer, n, columns}};
  op.input_roles = {Role::kIndex, Role::kWeight};
  op.bounds = {rows, 0};
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.gather({.x = in[1], .index = in[0], .y = out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < outer * n * columns; ++i) {
      const Index o = i / (n * columns), c = i % columns,
                  row = static_cast<Index>(in[0][at(each ? i : i / columns % n)]);
      out[0][at(i)] = in[1][at((o * rows + row) * columns + c)];
    }
  };
  op.backward = [](Backend& b, const Tensors& in, const Tensors&, const Tensors&, const Tensor& dy,
                   const Tensors& d) { b.scatter_add({.x = dy, .index = in[0], .y = d[1]}); };
  return op;
}

}  // namespace starling::tests
