#include <algorithm>

#include "core/operations/losses.h"
#include "core/text.h"
#include "kernels/cpu/cpu_backend_detail.h"

// The loss and what evaluation counts.
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
  /// Calls f(row, count) for rows that lie side by side.
  template <class F>
  void side_by_side(Index begin, Index end, const F& f) const {
    const Index step = classes == line ? end - begin : 1;
    for (Index r = begin; r < end; r += step) f(r, step);
  }
};

}  // namespace

namespace cpu {

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

double weight_factor(const TargetLoss& args, const std::int32_t* labels, Index rows) {
  if (!args.weighted()) return 1.0;
  const double* weights = optional<double>(args.class_weights);
  double sum = 0.0;
  for (Index r = 0; r < rows; ++r) {
    if (labels[r] != args.ignored) sum += weights ? weights[labels[r]] : 1.0;
  }
  if (args.total) *args.total.data<double>() += sum;
  if (args.total) return 1.0;
  return sum > 0.0 ? static_cast<double>(rows) / sum : 0.0;
}

}  // namespace cpu

void CpuBackend::cross_entropy(const TargetLoss& args) {
  const PaddedRows x(args.x, args.classes);
  const std::int32_t* labels = cpu::checked_labels(args.targets, x.rows, x.classes, args.ignored);
  const double scale = args.scale * cpu::weight_factor(args, labels, x.rows);
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

void CpuBackend::issue(const ClassificationMetrics& args) {
  const PaddedRows x(args.logits, args.classes);
  const std::int32_t* labels = cpu::checked_labels(args.labels, x.rows, x.classes, args.ignored);
  double* totals = args.totals.data<double>();
  floating(args.logits, [&, n = x.rows, c = x.classes](auto type) {
    using T = decltype(type);
    const T* logits = args.logits.data<T>();
    const cpu::Workspace<double> losses(*allocator_, n);
    const cpu::Workspace<Index> before(*allocator_, n);
    const auto counted = [&](Index begin, Index end) {
      x.side_by_side(begin, end, [&](Index r, Index count) {
        kernels<T>().softmax_cross_entropy(logits + r * x.line, labels + r, losses.data() + r,
                                           nullptr, count, c, 0.0, 1.0);
      });
      for (Index r = begin; r < end; ++r) {
        const T* row = logits + r * x.line;
        const auto own = cpu::widen(row[labels[r]]);
        // How many classes come before the label's: larger logits, and equal ones of a lower index.
        // NaN comes before everything.
        Index& first = before.data()[r] = 0;
        for (Index i = 0; i < c; ++i) {
          const auto other = cpu::widen(row[i]);
          first += i != labels[r] && (!(other <= own) || (other == own && i < labels[r]));
        }
      }
    };
    threads_.parallel_for(n, 16, [&](Index begin, Index end) {
      by_run(labels, args.ignored, begin, end, counted, [](Index, Index) {});
    });
    for (Index r = 0; r < n; ++r) {
      if (labels[r] == args.ignored) continue;
      totals[0] += losses.data()[r];
      totals[1] += before.data()[r] < 1 ? 1.0 : 0.0;
      totals[2] += before.data()[r] < 5 ? 1.0 : 0.0;
      totals[3] += 1.0;
    }
  });
}

}  // namespace starling
