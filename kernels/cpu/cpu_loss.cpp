#include "core/operations/losses.h"
#include "core/text.h"
#include "kernels/cpu/cpu_backend_detail.h"

// The loss and what evaluation counts.
namespace starling {

using cpu::Index;

namespace {

/// Labels outside the classes would read past a row; they are the data's fault.
const std::int32_t* checked_labels(const Tensor& labels, Index rows, Index classes) {
  const std::int32_t* label = labels.data<std::int32_t>();
  for (Index r = 0; r < rows; ++r) {
    if (label[r] < 0 || label[r] >= classes) {
      fail(ExitCode::kUsage, "data",
           "the label {} of sample {} of a batch lies outside the model's {}", label[r], r,
           counted(classes, "class"));
    }
  }
  return label;
}

}  // namespace

void CpuBackend::cross_entropy(const TargetLoss& args) {
  const auto [rows, classes] = cpu::matrix_of(args.x);
  const std::int32_t* labels = checked_labels(args.targets, rows, classes);
  floating(args.x, [&, n = rows, c = classes](auto type) {
    using T = decltype(type);
    const T* logits = args.x.data<T>();
    T* dlogits = cpu::optional<T>(args.dx);
    const cpu::Workspace<double> losses(*allocator_, n);
    threads_.parallel_for(n, 16, [&](Index begin, Index end) {
      kernels<T>().softmax_cross_entropy(logits + begin * c, labels + begin, losses.data() + begin,
                                         dlogits ? dlogits + begin * c : nullptr, end - begin, c,
                                         args.label_smoothing, args.scale * args.gradient_scale);
    });
    double sum = 0.0;
    for (Index r = 0; r < n; ++r) sum += losses.data()[r];
    if (args.loss) *args.loss.data<Compute<T>>() = static_cast<Compute<T>>(sum * args.scale);
  });
}

void CpuBackend::issue(const ClassificationMetrics& args) {
  const auto [rows, classes] = cpu::matrix_of(args.logits);
  const std::int32_t* labels = checked_labels(args.labels, rows, classes);
  double* totals = args.totals.data<double>();
  floating(args.logits, [&, n = rows, c = classes](auto type) {
    using T = decltype(type);
    const T* logits = args.logits.data<T>();
    const cpu::Workspace<double> losses(*allocator_, n);
    kernels<T>().softmax_cross_entropy(logits, labels, losses.data(), nullptr, n, c, 0.0, 1.0);
    for (Index r = 0; r < n; ++r) {
      const T* row = logits + r * c;
      const auto own = cpu::widen(row[labels[r]]);
      // How many classes come before the label's: larger logits, and equal ones of a lower index.
      // NaN comes before everything.
      Index before = 0;
      for (Index i = 0; i < c; ++i) {
        const auto other = cpu::widen(row[i]);
        before += i != labels[r] && (!(other <= own) || (other == own && i < labels[r]));
      }
      totals[0] += losses.data()[r];
      totals[1] += before < 1 ? 1.0 : 0.0;
      totals[2] += before < 5 ? 1.0 : 0.0;
    }
    totals[3] += static_cast<double>(n);
  });
}

}  // namespace starling
