#include "core/operations/products.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/backend.h"
#include "core/operations/checker.h"
#include "core/operations/list.h"
#include "core/operations/map.h"
#include "core/operations/reduce.h"

namespace starling {

namespace {

bool broadcasts(const Shape& from, const Shape& to) {
  const int more = to.rank() - from.rank();
  bool result = more >= 0;
  for (int d = 0; result && d < from.rank() - 2; ++d)
    result = from[d] == 1 || from[d] == to[more + d];
  return result;
}

/// What moves from one matrix to the next: places of c's batches, and the strides of a, b and c.
struct Dimension {
  std::int64_t size = 1;
  std::array<std::int64_t, 3> stride{};
  /// With the one inside it, this is one dimension of as many places as both.
  bool joins(const Dimension& inside) const {
    for (std::size_t i = 0; i < stride.size(); ++i)
      if (stride[i] != inside.stride[i] * inside.size) return false;
    return true;
  }
};

/// A view of `count` matrices of x with `rows` rows, `next` elements apart, or of one that all
/// take. The first begins `first` elements behind x's.
View matrices(const View& x, std::int64_t first, std::int64_t count, std::int64_t next,
              std::int64_t rows) {
  const int rank = x.shape().rank();
  return View(x.tensor(), {count, rows, x.shape().back()},
              {next, x.stride(rank - 2), x.stride(rank - 1)}, x.first() + first);
}

double moved(const View& x) {
  return std::min(static_cast<double>(x.elements()) * static_cast<double>(size_of(x.dtype())),
                  bytes_of({x.tensor()}));
}

}  // namespace

Accesses Matmul::accesses() const {
  // Of a larger tensor only what is seen through the view moves.
  double unseen = 0.0;
  for (const View* view : {&a, &b, &c}) unseen += moved(*view) - bytes_of({view->tensor()});
  if (accumulate) unseen += moved(c) - bytes_of({c.tensor()});
  Accesses result = Accesses()
                        .read({a.tensor(), b.tensor(), bias, gelu_input})
                        .write({before_gelu})
                        .output(accumulate, {c.tensor(), row_sums})
                        .again(unseen);
  result.flops += 2.0 * static_cast<double>(a.shape().back()) * static_cast<double>(c.elements());
  return result;
}

void matmul_in_steps(Backend& backend, const Matmul& args) {
  Matmul product = args;
  product.row_sums = product.before_gelu = product.gelu_input = {};
  const Shape& shape = args.c.shape();
  if (args.before_gelu) product.c = args.before_gelu.reshaped(shape);
  backend.matmul(product);
  if (args.before_gelu)
    backend.map({MapFunction::kGeluTanh, args.before_gelu.reshaped(shape), args.c.whole()});
  if (args.gelu_input)
    backend.map({MapFunction::kGeluTanhGradient, args.gelu_input.reshaped(shape), args.c.whole(),
                 args.c.whole()});
  if (args.row_sums)
    backend.reduce(
        {transposed(args.a).whole().reshaped({args.a.shape().back(), args.row_sums.elements()}),
         args.row_sums, args.accumulate});
}

std::vector<Matmul> batches_of(const Matmul& args) {
  std::vector<Matmul> result;
  if (args.c.elements() == 0) return result;
  const Shape& shape = args.c.shape();
  std::array<Dimension, Shape::kMaxRank> batches;
  std::size_t count = 0;
  for (int d = 0; d < shape.rank() - 2; ++d) {
    if (shape[d] == 1) continue;
    Dimension next{.size = shape[d]};
    for (std::size_t i = 0; i < next.stride.size(); ++i) {
      const View& x = *std::array{&args.a, &args.b, &args.c}[i];
      const int own = d - (shape.rank() - x.shape().rank());
      next.stride[i] = own >= 0 && x.shape()[own] != 1 ? x.stride(own) : 0;
    }
    if (count > 0 && batches[count - 1].joins(next)) {
      next.size *= batches[--count].size;
    }
    batches[count++] = next;
  }
  const Dimension last = count > 0 ? batches[--count] : Dimension{};
  const std::int64_t m = shape[shape.rank() - 2], k = args.a.shape().back(),
                     step_a = args.a.stride(args.a.shape().rank() - 2),
                     step_c = args.c.stride(shape.rank() - 2);
  std::int64_t runs = 1;
  for (std::size_t d = 0; d < count; ++d) runs *= batches[d].size;
  for (std::int64_t run = 0; run < runs; ++run) {
    std::array<std::int64_t, 3> first{};
    std::int64_t rest = run;
    for (std::size_t d = count; d-- > 0; rest /= batches[d].size)
      for (std::size_t i = 0; i < first.size(); ++i)
        first[i] += rest % batches[d].size * batches[d].stride[i];
    Matmul part = args;
    const auto set = [&](std::int64_t of_each, std::int64_t size, std::int64_t height) {
      part.a = matrices(args.a, first[0], size, of_each * last.stride[0], height);
      part.b = matrices(args.b, first[1], size, of_each * last.stride[1], k);
      part.c = matrices(args.c, first[2], size, of_each * last.stride[2], height);
    };
    // Rows that follow each other through all the batches are rows of one matrix.
    const bool rows =
        last.stride[1] == 0 && last.stride[0] == m * step_a && last.stride[2] == m * step_c;
    rows ? set(0, 1, last.size * m) : set(1, last.size, m);
    result.push_back(std::move(part));
  }
  return result;
}

FactorLayout factor_layout(const View& matrices) {
  const Shape& shape = matrices.shape();
  const int rows = shape.rank() - 2, columns = shape.rank() - 1;
  // A dimension of one place has no next one, so that its stride says nothing.
  const bool whole_rows = matrices.stride(columns) == 1 || shape[columns] == 1;
  const auto line = [&](int along, int across) {
    const std::int64_t step = shape[along] == 1 ? 0 : matrices.stride(along);
    return std::max({step, shape[across], std::int64_t{1}});
  };
  return whole_rows ? FactorLayout{false, line(rows, columns)}
                    : FactorLayout{true, line(columns, rows)};
}

void check(const Matmul& args) {
  const Checker call("matmul");
  call.floating(args.a.tensor(), "a"), call.there(args.b.tensor(), "b"),
      call.there(args.c.tensor(), "c");
  const Shape &a = args.a.shape(), &b = args.b.shape(), &c = args.c.shape();
  call.that(a.rank() >= 2 && b.rank() >= 2 && c.rank() >= 2,
            "a, b and c must be matrices, not {}, {} and {}", a.text(), b.text(), c.text());
  const auto rows = [](const Shape& shape) { return shape[shape.rank() - 2]; };
  call.that(rows(a) == rows(c) && a.back() == rows(b) && b.back() == c.back() && broadcasts(a, c) &&
                broadcasts(b, c),
            "{} by {} is not {}", a.text(), b.text(), c.text());
  const auto lies = [&](const View& x, const char* name, bool may_turn) {
    const int rank = x.shape().rank();
    const auto whole = [&](int along, int across) {
      return (x.shape()[across] <= 1 || x.stride(across) == 1) &&
             (x.shape()[along] <= 1 || x.stride(along) >= x.shape()[across]);
    };
    call.that(whole(rank - 2, rank - 1) || (may_turn && whole(rank - 1, rank - 2)),
              "{} of {} lie whole and apart", may_turn ? "neither rows nor columns" : "no rows",
              name);
  };
  lies(args.a, "a", true), lies(args.b, "b", true), lies(args.c, "c", false);
  call.that(!args.relu || args.c.contiguous(), "relu needs a c that lies in one piece");
  const bool gelu = args.before_gelu || args.gelu_input;
  call.that((!args.relu && !gelu) || !args.accumulate,
            "an activation and accumulate exclude each other");
  call.that(static_cast<int>(args.relu) + static_cast<int>(static_cast<bool>(args.row_sums)) +
                    static_cast<int>(static_cast<bool>(args.before_gelu)) +
                    static_cast<int>(static_cast<bool>(args.gelu_input)) <
                2,
            "relu, row_sums, before_gelu and gelu_input exclude each other");
  call.that(!args.in_steps() || args.c.contiguous(),
            "row_sums, before_gelu and gelu_input need a c that lies in one piece");
  call.that(!args.gelu_input || !args.bias, "gelu_input and bias exclude each other");
  call.that(!args.row_sums ||
                (args.a.elements() == rows(a) * a.back() && transposed(args.a).contiguous()),
            "row_sums need the transpose of one matrix that lies in one piece");
  const DType given = args.a.dtype(), wide = wide_of(given);
  call.that(args.b.dtype() == given, "a is {}, but b is {}", name_of(given),
            name_of(args.b.dtype()));
  call.that(args.c.dtype() == given || args.c.dtype() == wide, "c is {}; needed for {} factors: {}",
            name_of(args.c.dtype()), name_of(given), name_of(wide));
  call.may_have(args.bias, "bias", c.back(),
                args.bias && args.bias.dtype() == args.c.dtype() ? args.c.dtype() : wide);
  call.may_have(args.row_sums, "row_sums", rows(a), wide);
  call.that(!args.row_sums || args.c.dtype() == wide, "row_sums need a c of {}", name_of(wide));
  call.may_have(args.before_gelu, "before_gelu", c.elements(), args.c.dtype());
  call.may_have(args.gelu_input, "gelu_input", c.elements(), args.c.dtype());
}

}  // namespace starling
