#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "core/operations/along.h"
#include "kernels/cpu/cpu_backend_detail.h"

// The largest of a line's numbers, and running sums. Each thread takes whole lines.
namespace starling {

using cpu::Index;

namespace {

/// Adjacent lines that a thread processes together.
constexpr Index kSide = 256;
/// Numbers that are kept in order while a line is read; more of them are picked from a heap.
constexpr Index kKept = 64;

/// Whether a comes before b: NaN does before all.
template <class R>
bool larger(R a, R b) {
  return a > b || (std::isnan(a) && !std::isnan(b));
}

/// The place of the largest number of a line, of equal ones the first.
template <class R>
Index largest_place(const R* line, Index n) {
  constexpr Index kLanes = 16;
  R most[kLanes];
  std::fill_n(most, kLanes, line[0]);
  bool number = true;
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    int numbers = 0;
    for (Index lane = 0; lane < kLanes; ++lane) {
      const R value = line[i + lane];
      most[lane] = value > most[lane] ? value : most[lane];
      numbers += std::isnan(value) ? 0 : 1;
    }
    number = number && numbers == kLanes;
  }
  R best = most[0];
  for (const R value : most) best = value > best ? value : best;
  for (; i < n; ++i) {
    best = line[i] > best ? line[i] : best;
    number = number && !std::isnan(line[i]);
  }
  const auto is = [&](R value) { return number ? value == best : std::isnan(value); };
  return std::find_if(line, line + n, is) - line;
}

/// The places of the k largest of a line, from the largest on; the first of equal ones.
template <class R>
void largest_of(const R* line, Index n, Index k, std::int32_t* order) {
  if (k == 1) {
    order[0] = static_cast<std::int32_t>(largest_place(line, n));
    return;
  }
  if (k <= kKept) {
    R kept[kKept];
    Index count = 0;
    for (Index i = 0; i < n; ++i) {
      const R value = line[i];
      if (count == k && !larger(value, kept[k - 1])) continue;
      Index j = count < k ? count++ : k - 1;
      for (; j > 0 && larger(value, kept[j - 1]); --j)
        kept[j] = kept[j - 1], order[j] = order[j - 1];
      kept[j] = value;
      order[j] = static_cast<std::int32_t>(i);
    }
    return;
  }
  std::iota(order, order + n, 0);
  std::partial_sort(order, order + k, order + n, [&](std::int32_t a, std::int32_t b) {
    return larger(line[a], line[b]) || (!larger(line[b], line[a]) && a < b);
  });
}

/// Cumulative sums of `width` adjacent lines, with elements at distance `step`.
template <class T>
void running_sums(const T* x, T* y, Index n, Index step, Index width, double* sums) {
  if (width == 1) {
    double sum = 0.0;
    for (Index i = 0; i < n; ++i) {
      sum += static_cast<double>(cpu::widen(x[i * step]));
      y[i * step] = cpu::narrow<T>(static_cast<Compute<T>>(sum));
    }
    return;
  }
  std::fill_n(sums, width, 0.0);
  for (Index i = 0; i < n; ++i, x += step, y += step) {
    for (Index c = 0; c < width; ++c) {
      sums[c] += static_cast<double>(cpu::widen(x[c]));
      y[c] = cpu::narrow<T>(static_cast<Compute<T>>(sums[c]));
    }
  }
}

}  // namespace

void CpuBackend::issue(const TopK& args) {
  const Index n = args.x.shape()[1], inner = args.x.shape()[2], k = args.k();
  if (k == 0) return;
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const T* x = args.x.data<T>();
    T* values = cpu::optional<T>(args.values);
    std::int32_t* index = cpu::optional<std::int32_t>(args.index);
    threads_.parallel_for(args.x.shape()[0] * inner, cpu::rows_of_work(n),
                          [&](Index begin, Index end) {
                            const cpu::Workspace<R> line(*allocator_, n);
                            const cpu::Workspace<std::int32_t> order(*allocator_, n);
                            for (Index l = begin; l < end; ++l) {
                              const Index outer = l / inner, from = outer * n * inner + l % inner,
                                          to = outer * k * inner + l % inner;
                              for (Index i = 0; i < n; ++i)
                                line.data()[i] = cpu::widen(x[from + i * inner]);
                              largest_of(line.data(), n, k, order.data());
                              for (Index j = 0; j < k; ++j) {
                                const std::int32_t place = order.data()[j];
                                if (values) values[to + j * inner] = x[from + place * inner];
                                if (index) index[to + j * inner] = place;
                              }
                            }
                          });
  });
}

void CpuBackend::issue(const CumulativeSum& args) {
  const Index n = args.x.shape()[1], inner = args.x.shape()[2], sides = (inner + kSide - 1) / kSide;
  if (n == 0) return;
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    threads_.parallel_for(
        args.x.shape()[0] * sides, cpu::rows_of_work(n * std::min(inner, kSide)),
        [&](Index begin, Index end) {
          const cpu::Workspace<double> sums(*allocator_, std::min(inner, kSide));
          for (Index l = begin; l < end; ++l) {
            const Index first = l % sides * kSide,
                        at = (l / sides * n + (args.reverse ? n - 1 : 0)) * inner + first;
            running_sums(args.x.data<T>() + at, args.y.data<T>() + at, n,
                         args.reverse ? -inner : inner, std::min(kSide, inner - first),
                         sums.data());
          }
        });
  });
}

}  // namespace starling
