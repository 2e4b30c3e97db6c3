#include <utility>

#include "core/error.h"
#include "core/operations/along.h"
#include "core/operations/indexing.h"
#include "core/operations/map.h"
#include "layers/functions.h"

// Functions along one dimension, and functions with index tensors.
namespace starling::functions {

namespace {

void check_floating(std::string_view name, const Variable& x) {
  if (!is_floating(x.dtype()))
    fail(ExitCode::kUsage, name, "the input is {}; needed: a floating dtype", name_of(x.dtype()));
}

Shape with(Shape shape, int d, std::int64_t size) {
  shape[d] = size;
  return shape;
}

/// A tensor viewed as [outer, dimension d, inner].
Tensor around(const Tensor& x, int d) {
  std::int64_t outer = 1, inner = 1;
  for (int i = 0; i < d; ++i) outer *= x.shape()[i];
  for (int i = d + 1; i < x.shape().rank(); ++i) inner *= x.shape()[i];
  return x.reshaped({outer, x.shape()[d], inner});
}

/// Error(kUsage), starting with `name`, if the index is not int32.
void check_index(std::string_view name, const Tensor& index) {
  if (index.dtype() != DType::kInt32)
    fail(ExitCode::kUsage, name, "the index is {}; needed: int32", name_of(index.dtype()));
}

/// y = x plus `source` at the indices along dimension d.
void add_indexed(const Tensor& source, const Tensor& index, int d, const Tensor& y,
                 bool accumulate) {
  y.backend().scatter_add({.x = around(source, d),
                           .index = around(index, d),
                           .y = around(y, d),
                           .accumulate = accumulate});
}

/// Rows or single elements of x[outer, rows, inner] by an index.
Variable pick(std::string_view name, const Variable& x, int d, const Tensor& index,
              const Shape& out, Pass& pass) {
  check_index(name, index);
  const Tensor y(pass.backend, out, x.dtype());
  pass.backend.gather({.x = around(x.value(), d), .index = index, .y = around(y, d)});
  return pass.record(name, y, {x}, {}, [in = x.shape(), d, index](Gradients& g) {
    const Tensor dx(g.backend(), in, g.output().dtype());
    g.backend().scatter_add({.x = around(g.output(), d), .index = index, .y = around(dx, d)});
    g.set(0, dx);
  });
}

}  // namespace

Tensor argmax(const Variable& x, int dim, bool keepdim, Pass& pass) {
  check_floating("argmax", x);
  const int d = dimension("argmax", x.shape(), dim);
  if (x.shape()[d] == 0)
    fail(ExitCode::kUsage, "argmax", "dimension {} of {} has no number", dim, x.shape().text());
  const Tensor index(pass.backend, with(x.shape(), d, 1), DType::kInt32);
  pass.backend.topk({.x = around(x.value(), d), .values = {}, .index = around(index, d)});
  return keepdim ? index : squeeze(Variable(index), d, pass).value();
}

TopValues topk(const Variable& x, std::int64_t k, int dim, Pass& pass) {
  check_floating("topk", x);
  const int d = dimension("topk", x.shape(), dim);
  if (k < 0 || k > x.shape()[d])
    fail(ExitCode::kUsage, "topk", "{} of dimension {} of {}, which has {}", k, dim,
         x.shape().text(), x.shape()[d]);
  const Shape shape = with(x.shape(), d, k);
  const Tensor values(pass.backend, shape, x.dtype()), index(pass.backend, shape, DType::kInt32);
  pass.backend.topk(
      {.x = around(x.value(), d), .values = around(values, d), .index = around(index, d)});
  auto backward = [in = x.shape(), d, index](Gradients& g) {
    const Tensor dx(g.backend(), in, g.output().dtype());
    add_indexed(g.output(), index, d, dx, false);
    g.set(0, dx);
  };
  return {pass.record("topk", values, {x}, {}, std::move(backward)), index};
}

Variable cumsum(const Variable& x, int dim, Pass& pass) {
  check_floating("cumsum", x);
  const int d = dimension("cumsum", x.shape(), dim);
  const auto sums = [d](const Tensor& from, bool reverse) {
    const Tensor to(from.backend(), from.shape(), from.dtype());
    from.backend().cumulative_sum({.x = around(from, d), .y = around(to, d), .reverse = reverse});
    return to;
  };
  return pass.record("cumsum", sums(x.value(), false), {x}, {},
                     [sums](Gradients& g) { g.set(0, sums(g.output(), true)); });
}

Variable gather(const Variable& x, int dim, const Tensor& index, Pass& pass) {
  const int d = dimension("gather", x.shape(), dim);
  Shape same = index.shape();
  if (same.rank() == x.shape().rank()) same[d] = x.shape()[d];
  if (same != x.shape())
    fail(ExitCode::kUsage, "gather",
         "the index is {} and x {}; they may differ in dimension {} alone", index.shape().text(),
         x.shape().text(), dim);
  return pick("gather", x, d, around(index, d), index.shape(), pass);
}

Variable index_select(const Variable& x, int dim, const Tensor& index, Pass& pass) {
  const int d = dimension("index_select", x.shape(), dim);
  if (index.shape().rank() != 1)
    fail(ExitCode::kUsage, "index_select", "the index is {}; needed: one dimension",
         index.shape().text());
  Shape out = x.shape();
  out[d] = index.shape()[0];
  return pick("index_select", x, d, index, out, pass);
}

Variable scatter_add(const Variable& x, int dim, const Tensor& index, const Variable& source,
                     Pass& pass) {
  check_floating("scatter_add", x), check_index("scatter_add", index);
  const int d = dimension("scatter_add", x.shape(), dim);
  const Shape& from = source.shape();
  if (from.rank() != x.shape().rank() || with(from, d, x.shape()[d]) != x.shape() ||
      source.dtype() != x.dtype())
    fail(ExitCode::kUsage, "scatter_add",
         "x is {} {} and the source {} {}; they may differ in dimension {} alone",
         name_of(x.dtype()), x.shape().text(), name_of(source.dtype()), from.text(), dim);
  if (index.shape() != from)
    fail(ExitCode::kUsage, "scatter_add", "the index is {} and the source {}; needed: one shape",
         index.shape().text(), from.text());
  const Tensor y(pass.backend, x.shape(), x.dtype());
  pass.backend.copy(x.value(), y);
  add_indexed(source.value(), index, d, y, true);
  auto backward = [index, d, from](Gradients& g) {
    const Tensor& dy = g.output();
    if (g.wants(1)) {
      const Tensor taken(g.backend(), from, dy.dtype());
      g.backend().gather({.x = around(dy, d), .index = around(index, d), .y = around(taken, d)});
      g.set(1, taken);
    }
    g.set(0, dy);
  };
  return pass.record("scatter_add", y, {x, source}, {}, std::move(backward));
}

Variable one_hot(const Tensor& index, std::int64_t classes, DType dtype, Pass& pass) {
  check_index("one_hot", index);
  if (classes < 1 || !is_floating(dtype))
    fail(ExitCode::kUsage, "one_hot", "{} classes of {}; needed: one at least, of a floating dtype",
         classes, name_of(dtype));
  const std::int64_t n = index.elements();
  const Tensor one(pass.backend, {1, classes, 1}, dtype), ones(pass.backend, {1, n, 1}, dtype),
      rows(pass.backend, {n, classes, 1}, dtype);
  pass.backend.fill(one, 1.0);
  // On a GPU an invalid index gives NaN here, and adds nothing.
  pass.backend.gather({.x = one, .index = index, .y = ones});
  const Tensor each = ones.reshaped({n, 1, 1});
  pass.backend.scatter_add({.x = each, .index = index.reshaped({n, 1, 1}), .y = rows});
  pass.backend.map({MapFunction::kMultiply, rows, each, rows});
  return Variable(rows.reshaped(index.shape().with_last(classes)));
}

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
