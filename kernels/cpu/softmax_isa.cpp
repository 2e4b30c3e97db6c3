#include "kernels/cpu/rows_isa.h"
#include "kernels/math/activations.h"

// Softmax, and the cross entropy.

namespace starling::cpu::STARLING_ISA {
namespace {

template <class T>
static void softmax(const T* x, T* y, Index rows, Index n, bool logarithm) {
  using R = Compute<T>;
  alignas(64) R buffer[kStreamBuffer];
  const RowInput<T> in{x, buffer, n};
  const RowOutput<T> out(y, buffer, rows, n, true);
  // The powers stay where they go from the pass that adds them up to the last one.
  const bool keep = !logarithm && (out.direct() || n <= kStreamBuffer);
  for (Index r = 0; r < rows; ++r) {
    Lanes<R, Largest> most(-__builtin_inff());  // NaN shows in the sum
    in_parts(
        n, kStreamBuffer, [&](Index first, Index count) __attribute__((always_inline)) {
          const R* from = in.numbers(r, first, count, false);
          most.take(
              count, [=](Index i) __attribute__((always_inline)) { return from[i]; });
        });
    const R largest = most.result();
    const T* next = x + (r + 1 < rows ? r + 1 : r) * n;
    double sum = 0.0;
    if (keep) {
      sum = row_sum<R>(
          n, next, [&](Index first, Index count) __attribute__((always_inline)) {
            const R* from = in.numbers(r, first, count, true);
            R* to = out.room(r, first);
            return [=](Index i) __attribute__((always_inline)) {
              return to[i] = math::exponential(from[i] - largest);
            };
          });
    } else {
      sum = row_sum<R>(
          n, next, [&](Index first, Index count) __attribute__((always_inline)) {
            const R* from = in.numbers(r, first, count, true);
            return [=](Index i) __attribute__((always_inline)) {
              return math::exponential(from[i] - largest);
            };
          });
    }
    const R factor = static_cast<R>(1.0 / sum),
            shift = logarithm ? static_cast<R>(__builtin_log(sum)) : R(0);
    in_parts(
        n, kStreamBuffer, [&](Index first, Index count) __attribute__((always_inline)) {
          const R* from = keep ? nullptr : in.numbers(r, first, count, true);
          R* to = out.room(r, first);
          if (logarithm) {
            STARLING_LOOP for (Index i = 0; i < count; ++i) to[i] = (from[i] - largest) - shift;
          } else if (keep) {
            STARLING_LOOP for (Index i = 0; i < count; ++i) to[i] *= factor;
          } else {
            STARLING_LOOP for (Index i = 0; i < count; ++i) to[i] =
                math::exponential(from[i] - largest) * factor;
          }
          out.put(r, first, count);
        });
  }
  out.end();
}

template <class T>
static void softmax_backward(const T* y, const T* dy, T* dx, Index rows, Index n, bool logarithm) {
  using R = Compute<T>;
  alignas(64) R buffer[kStreamBuffer];
  const RowOutput<T> out(dx, buffer, rows, n, dx != dy);
  for (Index r = 0; r < rows; ++r) {
    const T *row = y + r * n, *gradient = dy + r * n, *none = nullptr;
    const Index ahead = r + 1 < rows ? n : 0;
    const R sum = static_cast<R>(
        logarithm ? row_sum<R>(
                        n, none,
                        [=](Index first, Index) __attribute__((always_inline)) {
                          return [g = gradient + first](Index i) __attribute__((always_inline)) {
                            return widen(g[i]);
                          };
                        })
                  : row_sum<R>(
                        n, none, [=](Index first, Index) __attribute__((always_inline)) {
                          return [ a = row + first, g = gradient + first ](Index i)
                              __attribute__((always_inline)) {
                            return widen(a[i]) * widen(g[i]);
                          };
                        }));
    in_parts(
        n, kPrefetchInterval, [&](Index first, Index count) __attribute__((always_inline)) {
          const T *a = row + first, *g = gradient + first;
          prefetch_range(a + ahead, count);
          prefetch_range(g + ahead, count);
          R* to = out.room(r, first);
          if (logarithm) {
            STARLING_LOOP for (Index i = 0; i < count; ++i) to[i] =
                widen(g[i]) - math::exponential(widen(a[i])) * sum;
          } else {
            STARLING_LOOP for (Index i = 0; i < count; ++i) to[i] =
                widen(a[i]) * (widen(g[i]) - sum);
          }
          out.put(r, first, count);
        });
  }
  out.end();
}

template <class T>
static void softmax_cross_entropy(const T* logits, const std::int32_t* labels, double* loss,
                                  T* dlogits, Index rows, Index classes, double smoothing,
                                  double scale) {
  using R = Compute<T>;
  const double uniform = smoothing / static_cast<double>(classes);
  for (Index r = 0; r < rows; ++r) {
    const T* row = logits + r * classes;
    Lanes<R, Largest> most(-__builtin_inff());
    most.take(
        classes, [=](Index i) __attribute__((always_inline)) { return widen(row[i]); });
    const R largest = most.result();
    Lanes<double, Plus> powers(0.0), logits_less(0.0);
    in_parts(
        classes, kPrefetchInterval, [&](Index first, Index count) __attribute__((always_inline)) {
          R shifted[kPrefetchInterval], power[kPrefetchInterval];
          for (Index i = 0; i < count; ++i) {
            shifted[i] = widen(row[first + i]) - largest;
            power[i] = math::exponential(shifted[i]);
          }
          powers.take(
              count, [&](Index i)
                         __attribute__((always_inline)) { return static_cast<double>(power[i]); });
          logits_less.take(
              count, [&](Index i) __attribute__((always_inline)) {
                return static_cast<double>(shifted[i]);
              });
        });
    const double sum = powers.result(), sum_of_logits = logits_less.result();
    const double log_sum = __builtin_log(sum);
    const R own = widen(row[labels[r]]) - largest;
    const auto of_label = static_cast<double>(own);
    // Σ target_c · (log Σ exp - logit_c), target = (1 - ε)·onehot + ε/C
    loss[r] = (1.0 - smoothing) * (log_sum - of_label) +
              uniform * (static_cast<double>(classes) * log_sum - sum_of_logits);
    if (!dlogits) continue;
    T* out = dlogits + r * classes;
    const R factor = static_cast<R>(scale / sum), offset = static_cast<R>(uniform * scale),
            peak = static_cast<R>((1.0 - smoothing) * scale);
    const auto gradient = [&](R shifted) __attribute__((always_inline)) {
      return math::exponential(shifted) * factor - offset;
    };
    STARLING_LOOP for (Index c = 0; c < classes; ++c) out[c] =
        narrow<T>(gradient(widen(row[c]) - largest));
    out[labels[r]] = narrow<T>(gradient(own) - peak);
  }
}

template <class T>
static void set(Kernels<T>& table) {
  table.softmax = softmax<T>;
  table.softmax_backward = softmax_backward<T>;
  table.softmax_cross_entropy = softmax_cross_entropy<T>;
}

}  // namespace

void add_softmax(AllKernels& all) { set(all.fp32), set(all.fp64), set(all.bf16), set(all.fp16); }

}  // namespace starling::cpu::STARLING_ISA
