#include "core/operations/products.h"

#include <array>
#include <utility>

#include "core/operations/checker.h"
#include "core/operations/list.h"
#include "core/operations/map.h"

namespace starling {

namespace {

/// A shape's last two dimensions, turned around where asked.
struct Matrix {
  std::int64_t rows, columns;
};
Matrix matrix_of(const Shape& shape, bool transposed) {
  const std::int64_t rows = shape[shape.rank() - 2], columns = shape.back();
  return transposed ? Matrix{columns, rows} : Matrix{rows, columns};
}
Shape batch_of(const Shape& shape) {
  return Shape(shape.sizes().first(static_cast<std::size_t>(shape.rank() - 2)));
}
bool broadcasts(const Shape& from, const Shape& to) {
  bool result = from.rank() <= to.rank();
  for (int d = 0; result && d < from.rank(); ++d)
    result = from[d] == 1 || from[d] == to[to.rank() - from.rank() + d];
  return result;
}

}  // namespace

std::vector<Matmul> batches_of(const Matmul& args) {
  const std::array<Shape, 2> operands{batch_of(args.a.shape()), batch_of(args.b.shape())};
  const Shape places = batch_of(args.c.shape());
  std::vector<Matmul> result;
  if (args.c.elements() == 0) return result;
  const MapLayout layout = layout_of(operands, places, places);
  const auto last = static_cast<std::size_t>(layout.rank - 1);
  const std::int64_t count = layout.size[last];
  for (std::int64_t run = 0; run < places.elements() / count; ++run) {
    // `count` matrices of a tensor, or one, from where the run's lie.
    const auto matrices = [&](const Tensor& tensor, std::size_t k) {
      const Shape& shape = tensor.shape();
      const Matrix each = matrix_of(shape, false);
      std::int64_t first = 0, rest = run;
      for (std::size_t d = last; d-- > 0; rest /= layout.size[d])
        first += rest % layout.size[d] * layout.stride[k][d];
      return tensor.slice(first * each.rows * each.columns,
                          {layout.stride[k][last] == 0 ? 1 : count, each.rows, each.columns});
    };
    Matmul part = args;
    part.a = matrices(args.a, 0);
    part.b = matrices(args.b, 1);
    part.c = matrices(args.c, kMapTensors);
    if (part.b.shape()[0] == 1 && part.a.shape()[0] == count && !args.transpose_a) {
      const Matrix all = matrix_of(part.a.shape(), false);
      part.a = part.a.reshaped({1, count * all.rows, all.columns});
      part.c = part.c.reshaped({1, count * all.rows, part.c.shape().back()});
    }
    result.push_back(std::move(part));
  }
  return result;
}

void check(const Matmul& args) {
  const Checker call("matmul");
  call.floating(args.a, "a"), call.there(args.b, "b"), call.there(args.c, "c");
  const Shape &a = args.a.shape(), &b = args.b.shape(), &c = args.c.shape();
  call.that(a.rank() >= 2 && b.rank() >= 2 && c.rank() >= 2,
            "a, b and c must be matrices, not {}, {} and {}", a.text(), b.text(), c.text());
  const Matrix left = matrix_of(a, args.transpose_a), right = matrix_of(b, args.transpose_b),
               result = matrix_of(c, false);
  call.that(left.rows == result.rows && left.columns == right.rows &&
                right.columns == result.columns && broadcasts(batch_of(a), batch_of(c)) &&
                broadcasts(batch_of(b), batch_of(c)),
            "{}{} by {}{} is not {}", a.text(), args.transpose_a ? " transposed" : "", b.text(),
            args.transpose_b ? " transposed" : "", c.text());
  call.that(!args.relu || !args.accumulate, "relu and accumulate exclude each other");
  const DType given = args.a.dtype(), wide = wide_of(given);
  call.that(args.b.dtype() == given, "a is {}, but b is {}", name_of(given),
            name_of(args.b.dtype()));
  call.that(args.c.dtype() == given || args.c.dtype() == wide, "c is {}; needed for {} factors: {}",
            name_of(args.c.dtype()), name_of(given), name_of(wide));
  call.may_have(args.bias, "bias", c.back(), wide);
}

}  // namespace starling
