#include "core/operations/along.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/operations/indexing.h"
#include "core/operations/resampling.h"
#include "tests/operations/rows.h"

// What looks at all numbers of a dimension, takes rows by number, and images of another size.
namespace starling::tests {

Operation top_k(Index outer, Index n, Index inner, Index k, Ties ties) {
  Operation op;
  op.name =
      fmt::format("topk {} of {}x{}x{}{}", k, outer, n, inner, ties == Ties::kMany ? ", ties" : "");
  op.inputs = {{outer, n, inner}};
  op.outputs = {{outer, k, inner}, {outer, k, inner}};
  op.output_roles = {Role::kActivation, Role::kIndex};
  op.exact = true;
  if (ties == Ties::kMany) {
    op.fit = [](std::vector<Numbers>& in) {
      for (double& v : in[0]) v = std::round(2 * v);
    };
  }
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.topk({.x = in[0], .values = out[0], .index = out[1]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index line = 0; line < outer * inner; ++line) {
      const auto place = [&](Index i, Index size) {
        return at((line / inner * size + i) * inner + line % inner);
      };
      std::vector<Index> order(at(n));
      std::iota(order.begin(), order.end(), Index{0});
      std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
        const double left = in[0][place(a, n)], right = in[0][place(b, n)];
        return left > right || (std::isnan(left) && !std::isnan(right));
      });
      for (Index j = 0; j < k; ++j) {
        out[0][place(j, k)] = in[0][place(order[at(j)], n)];
        out[1][place(j, k)] = static_cast<double>(order[at(j)]);
      }
    }
  };
  if (ties == Ties::kMany) return op;
  op.backward = [](Backend& b, const Tensors&, const Tensors& out, const Tensors&, const Tensor& dy,
                   const Tensors& d) { b.scatter_add({.x = dy, .index = out[1], .y = d[0]}); };
  return op;
}

Operation cumulative_sum(Index outer, Index n, Index inner, bool reverse) {
  Operation op;
  op.name = fmt::format("cumulative_sum {}x{}x{}{}", outer, n, inner, reverse ? ", reverse" : "");
  op.inputs = op.outputs = {{outer, n, inner}};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.cumulative_sum({.x = in[0], .y = out[0], .reverse = reverse});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index line = 0; line < outer * inner; ++line) {
      double sum = 0.0;
      for (Index i = 0; i < n; ++i) {
        const Index from = reverse ? n - 1 - i : i;
        const std::size_t place = at((line / inner * n + from) * inner + line % inner);
        out[0][place] = sum += in[0][place];
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy,
                    const Tensors& d) {
    b.cumulative_sum({.x = dy, .y = d[0], .reverse = !reverse});
  };
  return op;
}

Operation resampled(Resampling kind, const Image& x, Index height, Index width,
                    std::array<double, 2> scale) {
  const Image y{x.n, height, width, x.c};
  Operation op;
  constexpr const char* kNames[] = {"nearest", "bilinear", "average"};
  op.name = fmt::format("resample {} to {}x{}, {}", x.shape().text(), height, width,
                        kNames[static_cast<std::size_t>(kind)]);
  op.inputs = {x.shape()};
  op.outputs = {y.shape()};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.resample({.kind = kind, .x = in[0], .y = out[0], .scale = scale});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    // How much pixel i of `from` counts in pixel p of `to`.
    const auto weight = [&](std::size_t axis, Index from, Index to, Index p, Index i) {
      const auto size = static_cast<double>(from), place = static_cast<double>(p),
                 pixel = static_cast<double>(i);
      if (kind == Resampling::kAverage) {
        const double step = size / static_cast<double>(to), begin = std::floor(place * step),
                     end = std::ceil((place + 1.0) * step - 1e-9);
        return pixel >= begin && pixel < end ? 1.0 / (end - begin) : 0.0;
      }
      if (kind == Resampling::kNearest)
        return pixel == std::min(std::floor(place / scale[axis]), size - 1.0) ? 1.0 : 0.0;
      const double centre = std::clamp((place + 0.5) / scale[axis] - 0.5, 0.0, size - 1.0);
      return std::max(0.0, 1.0 - std::abs(centre - pixel));
    };
    for (Index n = 0; n < x.n; ++n) {
      for (Index p = 0; p < height * width; ++p) {
        for (Index i = 0; i < x.h * x.w; ++i) {
          const double share = weight(0, x.h, height, p / width, i / x.w) *
                               weight(1, x.w, width, p % width, i % x.w);
          for (Index c = 0; share > 0.0 && c < x.c; ++c)
            out[0][y.offset(n, p / width, p % width, c)] +=
                share * in[0][x.offset(n, i / x.w, i % x.w, c)];
        }
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy,
                    const Tensors& d) {
    b.resample({.kind = kind, .x = dy, .y = d[0], .scale = scale, .transposed = true});
  };
  return op;
}

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
