#include <algorithm>
#include <cmath>

#include "core/operations/losses.h"
#include "kernels/cpu/cpu_backend_detail.h"

// The losses beside the plain cross entropy, and the table of classes that an evaluation counts. A
// batch's outputs are few beside its activations, so all is fp64 and in plain loops.
namespace starling {

using cpu::Index;

namespace {

/// The targets of a row, one-hot where they are a class number.
template <class Real>
struct Targets {
  const std::int32_t* labels;
  const Real* numbers;
  double operator()(Index row, Index classes, Index c) const {
    return labels ? (labels[row] == c ? 1.0 : 0.0)
                  : static_cast<double>(numbers[row * classes + c]);
  }
};

/// Loss and gradient of a row of scores that share a softmax. `slopes`: of the row's classes.
template <class T, class Target>
double softmax_row(const TargetLoss& args, const T* row, Index classes, const Target& target,
                   double* slopes, T* dx, double factor) {
  double largest = static_cast<double>(cpu::widen(row[0])), sum = 0.0, loss = 0.0, total = 0.0;
  for (Index c = 1; c < classes; ++c)
    largest = std::max(largest, static_cast<double>(cpu::widen(row[c])));
  for (Index c = 0; c < classes; ++c)
    sum += std::exp(static_cast<double>(cpu::widen(row[c])) - largest);
  const double log_sum = std::log(sum), smoothing = args.label_smoothing,
               uniform = smoothing / static_cast<double>(classes);
  const auto log_p = [&](Index c) {
    return static_cast<double>(cpu::widen(row[c])) - largest - log_sum;
  };
  const double* weights = args.class_weights ? args.class_weights.data<double>() : nullptr;
  for (Index c = 0; c < classes; ++c) {
    double wanted = (1.0 - smoothing) * target(c) + uniform;
    if (weights) wanted *= weights[c];
    const math::LossTerm term = math::focal_loss(log_p(c), wanted, args.parameter);
    loss += term.value;
    total += slopes[c] = term.slope;
  }
  // ∂log p_c/∂x_k = [c = k] - p_k
  for (Index c = 0; dx && c < classes; ++c)
    dx[c] =
        cpu::narrow<T>(static_cast<Compute<T>>(factor * (slopes[c] - std::exp(log_p(c)) * total)));
  return loss;
}

}  // namespace

void CpuBackend::issue(const TargetLoss& args) {
  const auto [rows, classes] = cpu::matrix_of(args.x);
  const bool by_number = args.targets && args.targets.dtype() == DType::kInt32;
  if (by_number && args.kind == LossKind::kCrossEntropy && !args.class_weights)
    return cross_entropy(args);
  const std::int32_t* labels =
      by_number ? cpu::checked_labels(args.targets, rows, classes, args.ignored) : nullptr;
  const bool softmax = is_softmax(args.kind);
  const double scale = args.scale * cpu::weight_factor(args, labels, rows);
  floating(args.x, [&, n = rows, width = classes](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const T* x = args.x.data<T>();
    T* dx = cpu::optional<T>(args.dx);
    R* loss = cpu::optional<R>(args.loss);
    const Targets<R> targets{labels, labels ? nullptr : args.targets.data<R>()};
    const double factor = scale * args.gradient_scale;
    const cpu::Workspace<double> losses(*allocator_, n);
    threads_.parallel_for(n, std::max<Index>(1, 1024 / width), [&](Index begin, Index end) {
      const cpu::Workspace<double> slopes(*allocator_, softmax ? width : 1);
      for (Index r = begin; r < end; ++r) {
        const T* row = x + r * width;
        T* drow = dx ? dx + r * width : nullptr;
        double& sum = losses.data()[r] = 0.0;
        if (labels && labels[r] == args.ignored) {
          if (drow) std::fill_n(drow, width, T{});
          continue;
        }
        if (softmax) {
          sum = softmax_row(
              args, row, width, [&](Index c) { return targets(r, width, c); }, slopes.data(), drow,
              factor);
          continue;
        }
        for (Index c = 0; c < width; ++c) {
          const auto term = math::element_loss(args.kind, static_cast<double>(cpu::widen(row[c])),
                                               targets(r, width, c), args.parameter);
          sum += term.value;
          if (drow) drow[c] = cpu::narrow<T>(static_cast<R>(factor * term.slope));
        }
      }
    });
    double sum = 0.0;
    for (Index r = 0; r < n; ++r) sum += losses.data()[r];
    if (loss) *loss = static_cast<R>(sum * scale);
  });
}

void CpuBackend::issue(const ConfusionCounts& args) {
  const auto [rows, classes] = cpu::matrix_of(args.logits);
  const std::int32_t* labels = cpu::checked_labels(args.labels, rows, classes);
  double* counts = args.counts.data<double>();
  floating(args.logits, [&, n = rows, width = classes](auto type) {
    using T = decltype(type);
    const T* logits = args.logits.data<T>();
    for (Index r = 0; r < n; ++r) {
      const T* row = logits + r * width;
      Index best = 0;
      bool number = true;
      for (Index c = 0; c < width; ++c) {
        number = number && !std::isnan(cpu::widen(row[c]));
        if (cpu::widen(row[c]) > cpu::widen(row[best])) best = c;
      }
      counts[labels[r] * (width + 1) + (number ? best : width)] += 1.0;
    }
  });
}

}  // namespace starling
