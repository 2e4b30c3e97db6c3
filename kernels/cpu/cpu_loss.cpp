#include <algorithm>
#include <cmath>

#include "core/operations/losses.h"
#include "core/text.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Losses. All but the cross entropy with class indices are plain loops in fp64, since a batch has
// few outputs compared with its activations.
namespace starling {

using cpu::Index;

namespace {

/// Calls f(begin, end) for the runs of rows in begin … end - 1 that count, and rest(begin, end) for
/// those between them.
template <class F, class Rest>
void by_run(const std::int32_t* labels, std::optional<std::int32_t> ignored, Index begin, Index end,
            const F& f, const Rest& rest) {
  while (begin < end) {
    const bool counts = labels[begin] != ignored;
    Index last = begin + 1;
    while (last < end && (labels[last] != ignored) == counts) ++last;
    if (counts)
      f(begin, last);
    else
      rest(begin, last);
    begin = last;
  }
}

/// Rows of `line` numbers, of which the first `classes` count.
struct PaddedRows {
  Index rows, line, classes;
  PaddedRows(const Tensor& x, Index given)
      : rows(cpu::matrix_of(x).rows), line(x.shape().back()), classes(given > 0 ? given : line) {}
  /// Calls f(row, count) for contiguous rows.
  template <class F>
  void side_by_side(Index begin, Index end, const F& f) const {
    const Index step = classes == line ? end - begin : 1;
    for (Index r = begin; r < end; r += step) f(r, step);
  }
};

/// Numbers of classes for rows of logits. One outside the classes, which is not `ignored`, would
/// read past a row; it is the data's fault, Error(kUsage).
const std::int32_t* checked_labels(const Tensor& labels, Index rows, Index classes,
                                   std::optional<std::int32_t> ignored) {
  const std::int32_t* label = labels.data<std::int32_t>();
  for (Index r = 0; r < rows; ++r) {
    if ((label[r] < 0 || label[r] >= classes) && label[r] != ignored) {
      fail(ExitCode::kUsage, "data",
           "the label {} of sample {} of a batch lies outside the model's {}", label[r], r,
           counted(classes, "class"));
    }
  }
  return label;
}

/// What multiplies the mean over rows where they have weights; adds to the call's total where it
/// has one.
double weight_factor(const TargetLoss& args, Index classes) {
  if (!args.weighted()) return 1.0;
  const Index rows = args.weighed().elements();
  const std::int32_t* labels = checked_labels(args.weighed(), rows, classes, args.ignored);
  const double* weights = cpu::optional<double>(args.class_weights);
  double sum = 0.0;
  for (Index r = 0; r < rows; ++r) {
    if (labels[r] != args.ignored) sum += weights ? weights[labels[r]] : 1.0;
  }
  if (args.total) *args.total.data<double>() += sum;
  if (args.total) return 1.0;
  return sum > 0.0 ? static_cast<double>(rows) / sum : 0.0;
}

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

void CpuBackend::cross_entropy(const TargetLoss& args) {
  const PaddedRows x(args.x, args.classes);
  const std::int32_t* labels = checked_labels(args.targets, x.rows, x.classes, args.ignored);
  const double scale = args.scale * weight_factor(args, x.classes);
  floating(args.x, [&, n = x.rows, c = x.classes](auto type) {
    using T = decltype(type);
    const T* logits = args.x.data<T>();
    T* dlogits = cpu::optional<T>(args.dx);
    const cpu::Workspace<double> losses(*allocator_, n);
    const auto counted = [&](Index begin, Index end) {
      x.side_by_side(begin, end, [&](Index r, Index count) {
        kernels<T>().softmax_cross_entropy(logits + r * x.line, labels + r, losses.data() + r,
                                           dlogits ? dlogits + r * x.line : nullptr, count, c,
                                           args.label_smoothing, scale * args.gradient_scale);
      });
    };
    const auto ignored = [&](Index begin, Index end) {
      std::fill(losses.data() + begin, losses.data() + end, 0.0);
      if (dlogits) std::fill(dlogits + begin * x.line, dlogits + end * x.line, T{});
    };
    threads_.parallel_for(n, 16, [&](Index begin, Index end) {
      by_run(labels, args.ignored, begin, end, counted, ignored);
    });
    double sum = 0.0;
    for (Index r = 0; r < n; ++r) sum += losses.data()[r];
    if (args.loss) *args.loss.data<Compute<T>>() = static_cast<Compute<T>>(sum * scale);
  });
}

void CpuBackend::issue(const TargetLoss& args) {
  const auto [rows, classes] = cpu::matrix_of(args.x);
  const bool by_number = args.targets && args.targets.dtype() == DType::kInt32;
  if (by_number && args.kind == LossKind::kCrossEntropy && !args.class_weights)
    return cross_entropy(args);
  const std::int32_t* labels =
      by_number ? checked_labels(args.targets, rows, classes, args.ignored) : nullptr;
  const bool softmax = is_softmax(args.kind);
  const double scale = args.scale * weight_factor(args, classes);
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

}  // namespace starling
