#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/operations/copying.h"
#include "core/operations/reduce.h"
#include "layers/functions.h"
#include "layers/functions_chain.h"

// Functions that move elements.
namespace starling::functions {

namespace {

using Dimension = StridedCopy::Dimension;

std::size_t at(int d) { return static_cast<std::size_t>(d); }

/// The strides of a contiguous tensor.
std::vector<std::int64_t> strides_of(const Shape& shape) {
  std::vector<std::int64_t> result(at(shape.rank()), 1);
  for (int d = shape.rank() - 1; d-- > 0;) result[at(d)] = result[at(d + 1)] * shape[d + 1];
  return result;
}

/// A copy from x to y of the same shape, whose dimensions callers then modify.
StridedCopy copy_of(const Tensor& x, const Tensor& y) {
  StridedCopy copy{.x = x, .y = y, .rank = y.shape().rank()};
  const std::vector<std::int64_t> strides = strides_of(x.shape());
  for (int d = 0; d < copy.rank; ++d)
    copy.dimensions[at(d)] = Dimension::whole(y.shape()[d], strides[at(d)]);
  return copy;
}

/// y = elements begin … begin + y's size - 1 of dimension d of x.
void take(const Tensor& x, const Tensor& y, int d, std::int64_t begin) {
  StridedCopy copy = copy_of(x, y);
  copy.first = begin * copy.dimensions[at(d)].stride;
  x.backend().strided_copy(copy);
}
/// Copies x to y's dimension d from `begin` on; the other elements become `others`, or stay
/// unchanged.
void put(const Tensor& x, const Tensor& y, int d, std::int64_t begin,
         std::optional<double> others) {
  StridedCopy copy = copy_of(x, y);
  Dimension& along = copy.dimensions[at(d)];
  along.begin = begin;
  along.count = x.shape()[d];
  copy.others = others;
  x.backend().strided_copy(copy);
}

void permute_into(const Tensor& x, const Tensor& y, const std::vector<int>& from) {
  StridedCopy copy = copy_of(y, y);
  copy.x = x;
  const std::vector<std::int64_t> strides = strides_of(x.shape());
  for (std::size_t d = 0; d < from.size(); ++d) copy.dimensions[d].stride = strides[at(from[d])];
  x.backend().strided_copy(copy);
}

/// Reversed in these dimensions; its own inverse.
Tensor flipped(const Tensor& x, const std::vector<int>& dims) {
  Tensor y(x.backend(), x.shape(), x.dtype());
  StridedCopy copy = copy_of(x, y);
  for (const int d : dims) {
    Dimension& along = copy.dimensions[at(d)];
    copy.first += std::max<std::int64_t>(0, along.size - 1) * along.stride;
    along.stride = -along.stride;
  }
  x.backend().strided_copy(copy);
  return y;
}

Shape without(const Shape& shape, int d) {
  std::vector<std::int64_t> sizes(shape.sizes().begin(), shape.sizes().end());
  sizes.erase(sizes.begin() + d);
  return Shape(std::span<const std::int64_t>(sizes));
}

}  // namespace

Variable permute(const Variable& x, const Dims& dims, Pass& pass) {
  const Shape& in = x.shape();
  std::vector<int> from;
  for (const int dim : dims) from.push_back(dimension("permute", in, dim));
  std::vector<int> sorted = from;
  std::sort(sorted.begin(), sorted.end());
  for (int d = 0; d < in.rank() || at(d) < sorted.size(); ++d) {
    if (at(d) >= sorted.size() || sorted[at(d)] != d)
      fail(ExitCode::kUsage, "permute", "{} dimensions of {}; needed: each of its {} once",
           dims.size(), in.text(), in.rank());
  }
  Shape out = in;
  std::vector<int> back(from.size());
  for (std::size_t d = 0; d < from.size(); ++d) {
    out[static_cast<int>(d)] = in[from[d]];
    back[at(from[d])] = static_cast<int>(d);
  }
  const Tensor y(pass.backend, out, x.dtype());
  permute_into(x.value(), y, from);
  return pass.record("permute", y, {x}, {}, [in, back](Gradients& g) {
    Tensor dx(g.backend(), in, g.output().dtype());
    permute_into(g.output(), dx, back);
    g.set(0, std::move(dx));
  });
}

Variable transpose(const Variable& x, int dim_a, int dim_b, Pass& pass) {
  Dims dims(at(x.shape().rank()));
  std::iota(dims.begin(), dims.end(), 0);
  std::swap(dims[at(dimension("transpose", x.shape(), dim_a))],
            dims[at(dimension("transpose", x.shape(), dim_b))]);
  return permute(x, dims, pass);
}

Variable unsqueeze(const Variable& x, int dim, Pass& pass) {
  std::vector<std::int64_t> sizes(x.shape().sizes().begin(), x.shape().sizes().end());
  const int d = dimension("unsqueeze", x.shape().with_last(1), dim);
  sizes.insert(sizes.begin() + d, 1);
  return reshape(x, Shape(std::span<const std::int64_t>(sizes)), pass);
}

Variable squeeze(const Variable& x, int dim, Pass& pass) {
  const int d = dimension("squeeze", x.shape(), dim);
  return x.shape()[d] == 1 ? reshape(x, without(x.shape(), d), pass) : x;
}

Tensor repeated(const Tensor& x, const Shape& shape, Backend& backend) {
  Tensor y(backend, shape, x.dtype());
  StridedCopy copy = copy_of(y, y);
  copy.x = x;
  const std::vector<std::int64_t> strides = strides_of(x.shape());
  for (int d = 0; d < shape.rank(); ++d) {
    const int own = d - (shape.rank() - x.shape().rank());
    copy.dimensions[at(d)].stride = own < 0 || x.shape()[own] == 1 ? 0 : strides[at(own)];
  }
  backend.strided_copy(copy);
  return y;
}

Variable expand(const Variable& x, const Shape& shape, Pass& pass) {
  if (broadcast("expand", x.shape(), shape) != shape)
    fail(ExitCode::kUsage, "expand", "{} does not become {}", x.shape().text(), shape.text());
  if (x.shape() == shape) return x;
  return pass.record("expand", repeated(x.value(), shape, pass.backend), {x}, {},
                     [in = x.shape()](Gradients& g) {
                       const Tensor dx(g.backend(), in, g.output().dtype());
                       g.backend().reduce({g.output(), dx});
                       g.set(0, dx);
                     });
}

Variable slice(const Variable& x, int dim, std::int64_t begin, std::int64_t end, Pass& pass) {
  const Shape& in = x.shape();
  const int d = dimension("slice", in, dim);
  // As in Python, negative indices count from the end, and indices are clamped.
  const auto place = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(i < 0 ? i + in[d] : i, 0, in[d]);
  };
  const std::int64_t first = place(begin), count = std::max<std::int64_t>(0, place(end) - first);
  Shape out = in;
  out[d] = count;
  Tensor y;
  if (d == 0) {
    const std::int64_t each = in[0] > 0 ? in.elements() / in[0] : 0;
    y = x.value().slice(first * each, out);
  } else {
    y = Tensor(pass.backend, out, x.dtype());
    take(x.value(), y, d, first);
  }
  return pass.record("slice", std::move(y), {x}, {}, [in, d, first](Gradients& g) {
    const Tensor dx(g.backend(), in, g.output().dtype());
    put(g.output(), dx, d, first, 0.0);
    g.set(0, dx);
  });
}

std::vector<Variable> split(const Variable& x, const std::vector<std::int64_t>& sizes, int dim,
                            Pass& pass) {
  const int d = dimension("split", x.shape(), dim);
  if (std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != x.shape()[d])
    fail(ExitCode::kUsage, "split", "the {} sizes do not add up to {}, dimension {} of {}",
         sizes.size(), x.shape()[d], dim, x.shape().text());
  std::vector<Tensor> parts;
  std::int64_t first = 0;
  for (const std::int64_t size : sizes) {
    Shape shape = x.shape();
    shape[d] = size;
    parts.emplace_back(pass.backend, shape, x.dtype());
    take(x.value(), parts.back(), d, std::exchange(first, first + size));
  }
  return pass.record("split", std::move(parts), {x}, {}, [in = x.shape(), d, sizes](Gradients& g) {
    Tensor dx;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < sizes.size(); begin += sizes[i++]) {
      const auto output = static_cast<int>(i);
      if (!g.has(output)) continue;
      const bool first_one = !dx;
      if (first_one) dx = Tensor(g.backend(), in, g.output(output).dtype());
      put(g.output(output), dx, d, begin, first_one ? std::optional(0.0) : std::nullopt);
    }
    g.set(0, dx);
  });
}

Variable concat(const std::vector<Variable>& parts, int dim, Pass& pass) {
  if (parts.empty()) fail(ExitCode::kUsage, "concat", "no values are given");
  Shape out = parts.front().shape();
  const int d = dimension("concat", out, dim);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    Shape own = parts[i].shape();
    if (own.rank() == out.rank()) {
      const std::int64_t size = std::exchange(own[d], out[d]);
      if (own == out && parts[i].dtype() == parts.front().dtype()) {
        out[d] += size;
        continue;
      }
    }
    fail(ExitCode::kUsage, "concat", "{} {} and {} {} differ beside dimension {}",
         name_of(parts.front().dtype()), parts.front().shape().text(), name_of(parts[i].dtype()),
         parts[i].shape().text(), dim);
  }
  const Tensor y(pass.backend, out, parts.front().dtype());
  std::vector<std::int64_t> begins;
  std::int64_t begin = 0;
  for (const Variable& part : parts) {
    begins.push_back(begin);
    put(part.value(), y, d, begin, std::nullopt);
    begin += part.shape()[d];
  }
  std::vector<Shape> shapes;
  for (const Variable& part : parts) shapes.push_back(part.shape());
  return pass.record("concat", y, parts, {}, [shapes, begins, d](Gradients& g) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (!g.wants(static_cast<int>(i))) continue;
      const Tensor dx(g.backend(), shapes[i], g.output().dtype());
      take(g.output(), dx, d, begins[i]);
      g.set(static_cast<int>(i), dx);
    }
  });
}

Variable stack(const std::vector<Variable>& parts, int dim, Pass& pass) {
  std::vector<Variable> rows;
  for (const Variable& part : parts) rows.push_back(unsqueeze(part, dim, pass));
  return concat(rows, dim, pass);
}

Variable pad(const Variable& x, const std::vector<std::int64_t>& amounts, double value,
             Pass& pass) {
  const Shape& in = x.shape();
  if (amounts.size() % 2 != 0 || amounts.size() > 2 * at(in.rank()))
    fail(ExitCode::kUsage, "pad", "{} numbers for {}; needed: two for each dimension, last first",
         amounts.size(), in.text());
  if (std::any_of(amounts.begin(), amounts.end(), [](std::int64_t n) { return n < 0; }))
    fail(ExitCode::kUsage, "pad", "a number is negative; slice() takes away");
  Shape out = in;
  std::vector<std::int64_t> begin(at(in.rank()), 0);
  for (std::size_t i = 0; i < amounts.size(); i += 2) {
    const int d = in.rank() - 1 - static_cast<int>(i / 2);
    begin[at(d)] = amounts[i];
    out[d] += amounts[i] + amounts[i + 1];
  }
  const Tensor y(pass.backend, out, x.dtype());
  StridedCopy copy = copy_of(x.value(), y);
  copy.others = value;
  for (int d = 0; d < in.rank(); ++d) {
    copy.dimensions[at(d)].begin = begin[at(d)];
    copy.dimensions[at(d)].count = in[d];
  }
  pass.backend.strided_copy(copy);
  return pass.record("pad", y, {x}, {}, [in, begin](Gradients& g) {
    const Tensor dx(g.backend(), in, g.output().dtype());
    StridedCopy back = copy_of(g.output(), dx);
    for (std::size_t d = 0; d < begin.size(); ++d)
      back.first += begin[d] * back.dimensions[d].stride;
    g.backend().strided_copy(back);
    g.set(0, dx);
  });
}

Variable flip(const Variable& x, const Dims& dims, Pass& pass) {
  std::vector<int> turned;
  for (const int dim : dims) {
    turned.push_back(dimension("flip", x.shape(), dim));
    if (std::count(turned.begin(), turned.end(), turned.back()) > 1)
      fail(ExitCode::kUsage, "flip", "dimension {} is there twice", dim);
  }
  return pass.record("flip", flipped(x.value(), turned), {x}, {},
                     [turned](Gradients& g) { g.set(0, flipped(g.output(), turned)); });
}

}  // namespace starling::functions
