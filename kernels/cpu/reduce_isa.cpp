#include "kernels/cpu/rows_isa.h"

// Sums, and the largest and least numbers, of lines, or of columns of lines.

namespace starling::cpu::STARLING_ISA {
namespace {

/// Largest or Least, but NaN where one is.
template <class Fold>
struct OrNan {
  template <class R>
  STARLING_HD static R of(R a, R b) {
    return __builtin_isnan(b) ? b : Fold::of(a, b);
  }
};

template <class Fold>
struct NanOf {
  using Type = OrNan<Fold>;
};
template <>
struct NanOf<Plus> {
  using Type = Plus;
};

/// Calls run(Fold{}, the number that changes nothing).
template <class R, class Run>
STARLING_HD void with_fold(Reduction by, Run run) {
  if (by == Reduction::kSum)
    run(Plus{}, R(0));
  else if (by == Reduction::kLargest)
    run(Largest{}, -static_cast<R>(__builtin_inff()));
  else
    run(Least{}, static_cast<R>(__builtin_inff()));
}
template <class Fold>
constexpr bool kSums = __is_same(Fold, Plus);

template <class Fold, class R, class T>
STARLING_HD R fold_line(const T* x, Index n, R nothing) {
  Lanes<R, Fold> lanes(nothing);
  lanes.take(
      n, [=](Index i) __attribute__((always_inline)) { return widen(x[i]); });
  return lanes.result();
}

/// Of what is largest or least, NaN is. A sum that is none tells of them, and costs less than a
/// look at each number.
template <class T>
static void fold_lines(Reduction by, const T* x, Index line, Index lines, Index n, double* to) {
  using R = Compute<T>;
  with_fold<R>(
      by, [&]<class Fold>(Fold, R nothing) __attribute__((always_inline)) {
        for (Index i = 0; i < lines; ++i) {
          double result = static_cast<double>(nothing);
          in_parts(
              n, kStreamBuffer, [&](Index first, Index count) __attribute__((always_inline)) {
                const T* from = x + i * line + first;
                R part = fold_line<Fold>(from, count, nothing);
                if constexpr (!kSums<Fold>) {
                  if (i + 1 < lines) prefetch_range(from + line, count);
                  const R sum = fold_line<Plus>(from, count, R(0));
                  if (__builtin_isnan(sum)) part = fold_line<OrNan<Fold>>(from, count, nothing);
                  result = OrNan<Fold>::of(result, static_cast<double>(part));
                } else {
                  result += static_cast<double>(part);
                }
              });
          to[i] = result;
        }
      });
}

/// s[v] takes the numbers of lines, four at a time.
template <class Fold, class T>
static inline void take_lines(const T* x, Index step, Index lines, Index n,
                              Compute<T>* __restrict s) {
  using R = Compute<T>;
  Index r = 0;
  for (; r + 4 <= lines; r += 4) {
    const T* __restrict row = x + r * step;
    STARLING_LOOP for (Index v = 0; v < n; ++v) {
      const R a = Fold::of(widen(row[v]), widen(row[step + v])),
              b = Fold::of(widen(row[2 * step + v]), widen(row[3 * step + v]));
      s[v] = Fold::of(s[v], Fold::of(a, b));
    }
  }
  for (; r < lines; ++r) {
    const T* __restrict row = x + r * step;
    STARLING_LOOP for (Index v = 0; v < n; ++v) s[v] = Fold::of(s[v], widen(row[v]));
  }
}

/// Tile by tile of columns, whose results stay in the first cache.
template <class T>
static void fold_columns(Reduction by, const T* x, Index line, Index lines, Index columns,
                         bool joins, double* to) {
  using R = Compute<T>;
  constexpr Index kTile = 1024, kLongest = 2048;  // of columns, and of short lines as one
  constexpr Index kGroup = 8;                     // lines of a tile that are in the first cache
  // Lines that follow each other go as one long one where they are short.
  const Index fold = joins && line == columns ? fold_rows(columns) : 1, width = fold * columns,
              step = fold * line, whole = lines / fold, rest = (lines - whole * fold) * columns,
              tile = fold > 1 ? width : kTile;
  with_fold<R>(
      by, [&]<class Fold>(Fold, R nothing) __attribute__((always_inline)) {
        for (Index first = 0; first < width; first += tile) {
          const Index n = width - first < tile ? width - first : tile;
          R s[kLongest], sums[kLongest];
          const auto take = [&]<class Each>(Each, R start, bool looks) {
            for (Index v = 0; v < n; ++v) s[v] = start, sums[v] = R(0);
            for (Index r = 0; r < whole; r += kGroup) {
              const Index count = whole - r < kGroup ? whole - r : kGroup;
              const T* from = x + r * step + first;
              take_lines<Each>(from, step, count, n, s);
              if (looks) take_lines<Plus>(from, step, count, n, sums);
            }
            if (fold == 1) return;
            // What does not fill a long line
            take_lines<Each>(x + whole * step, step, rest > 0, rest, s);
            if (looks) take_lines<Plus>(x + whole * step, step, rest > 0, rest, sums);
          };
          take(Fold{}, nothing, !kSums<Fold>);
          if constexpr (!kSums<Fold>) {
            const R sum = fold_line<Plus>(sums, n, R(0));
            if (__builtin_isnan(sum)) take(OrNan<Fold>{}, nothing, false);
          }
          using Last = typename NanOf<Fold>::Type;
          for (Index v = 0; v < n; v += columns) {
            const Index count = n - v < columns ? n - v : columns;
            for (Index c = 0; c < count; ++c)
              to[first + c] = Last::of(to[first + c], static_cast<double>(s[v + c]));
          }
        }
      });
}

template <class T>
static void set(Kernels<T>& table) {
  table.fold_lines = fold_lines<T>;
  table.fold_columns = fold_columns<T>;
}

}  // namespace

void add_reduce(AllKernels& all) { set(all.fp32), set(all.fp64), set(all.bf16), set(all.fp16); }

}  // namespace starling::cpu::STARLING_ISA
