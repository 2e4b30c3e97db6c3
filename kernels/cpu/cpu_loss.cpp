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
  const auto [rows, classes] = cpu::matrix_of(args.x);
  const std::int32_t* labels = cpu::checked_labels(args.targets, rows, classes, args.ignored);
  const double scale = args.scale * cpu::weight_factor(args, labels, rows);
  floating(args.x, [&, n = rows, c = classes](auto type) {
    using T = decltype(type);
    const T* logits = args.x.data<T>();
    T* dlogits = cpu::optional<T>(args.dx);
    const cpu::Workspace<double> losses(*allocator_, n);
    const auto counted = [&](Index begin, Index end) {
      kernels<T>().softmax_cross_entropy(logits + begin * c, labels + begin, losses.data() + begin,
                                         dlogits ? dlogits + begin * c : nullptr, end - begin, c,
                                         args.label_smoothing, scale * args.gradient_scale);
    };
    const auto ignored = [&](Index begin, Index end) {
      std::fill(losses.data() + begin, losses.data() + end, 0.0);
      if (dlogits) std::fill(dlogits + begin * c, dlogits + end * c, T{});
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
  const auto [rows, classes] = cpu::matrix_of(args.logits);
  const std::int32_t* labels = cpu::checked_labels(args.labels, rows, classes, args.ignored);
  double* totals = args.totals.data<double>();
  floating(args.logits, [&, n = rows, c = classes](auto type) {
    using T = decltype(type);
    const T* logits = args.logits.data<T>();
    const cpu::Workspace<double> losses(*allocator_, n);
    const cpu::Workspace<Index> before(*allocator_, n);
    const auto counted = [&](Index begin, Index end) {
      kernels<T>().softmax_cross_entropy(logits + begin * c, labels + begin, losses.data() + begin,
                                         nullptr, end - begin, c, 0.0, 1.0);
      for (Index r = begin; r < end; ++r) {
        const T* row = logits + r * c;
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
