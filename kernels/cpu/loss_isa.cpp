#include "kernels/cpu/kernels.h"
#include "kernels/math/activations.h"

namespace starling::cpu::STARLING_ISA {
namespace {

template <class T>
static void softmax_cross_entropy(const T* logits, const std::int32_t* labels, double* loss,
                                  T* dlogits, Index rows, Index classes, double smoothing,
                                  double scale) {
  using R = Compute<T>;
  const double uniform = smoothing / static_cast<double>(classes);
  for (Index r = 0; r < rows; ++r) {
    const T* row = logits + r * classes;
    R largest = widen(row[0]);
    for (Index c = 1; c < classes; ++c) largest = widen(row[c]) > largest ? widen(row[c]) : largest;
    constexpr Index kPiece = 256;
    double sum = 0.0, sum_of_logits = 0.0;
    for (Index begin = 0; begin < classes; begin += kPiece) {
      const Index count = classes - begin < kPiece ? classes - begin : kPiece;
      R shifted[kPiece], power[kPiece];
      for (Index i = 0; i < count; ++i) {
        shifted[i] = widen(row[begin + i]) - largest;
        power[i] = math::exponential(shifted[i]);
      }
      for (Index i = 0; i < count; ++i) {
        sum += static_cast<double>(power[i]);
        sum_of_logits += static_cast<double>(shifted[i]);
      }
    }
    const double log_sum = __builtin_log(sum);
    const double of_label = static_cast<double>(widen(row[labels[r]]) - largest);
    // Σ target_c · (log Σ exp - logit_c), target = (1 - ε)·onehot + ε/C
    loss[r] = (1.0 - smoothing) * (log_sum - of_label) +
              uniform * (static_cast<double>(classes) * log_sum - sum_of_logits);
    if (!dlogits) continue;
    T* out = dlogits + r * classes;
    const R factor = static_cast<R>(scale / sum), offset = static_cast<R>(uniform * scale),
            peak = static_cast<R>((1.0 - smoothing) * scale);
    const auto gradient = [&](Index c) __attribute__((always_inline)) {
      return math::exponential(widen(row[c]) - largest) * factor - offset;
    };
    for (Index c = 0; c < classes; ++c) out[c] = narrow<T>(gradient(c));
    out[labels[r]] = narrow<T>(gradient(labels[r]) - peak);
  }
}

template <class T>
static void set(Kernels<T>& table) {
  table.softmax_cross_entropy = softmax_cross_entropy<T>;
}

}  // namespace

STARLING_DEFINE_ADDERS(add_loss)

}  // namespace starling::cpu::STARLING_ISA
