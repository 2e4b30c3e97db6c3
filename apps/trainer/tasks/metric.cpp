#include "apps/trainer/tasks/metric.h"

#include <cmath>

#include "core/operations/losses.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

/// The plain cross entropy, and how often the label's score is the largest or among the five
/// largest.
class ClassificationMetric final : public Metric {
 public:
  explicit ClassificationMetric(std::int64_t outputs) : top5_(outputs > 10) {}
  std::int64_t sums() const override { return 4; }
  void add(const Task&, const TaskOutput& output, const Tensor& totals, Pass& pass) const override {
    pass.backend.classification_metrics(
        {.logits = output.outputs.value(), .labels = output.targets, .totals = totals});
  }
  std::vector<MetricValue> values(std::span<const double> sums, double) const override {
    const double count = sums[3] > 0.0 ? sums[3] : std::nan("");
    std::vector<MetricValue> values{{"loss", sums[0] / count}, {"accuracy", sums[1] / count, true}};
    if (top5_) values.push_back({"top5", sums[2] / count, true});
    return values;
  }

 private:
  bool top5_;
};

/// The loss that is trained with, whatever it is.
class MeanLoss final : public Metric {
 public:
  std::int64_t sums() const override { return 1; }
  void add(const Task& task, const TaskOutput& output, const Tensor& totals,
           Pass& pass) const override {
    const Tensor loss = task.loss(output, 1.0, pass).value();
    const Tensor wide(pass.backend, Shape{1}, DType::kFloat64);
    pass.backend.cast({.x = loss.reshaped({1}), .y = wide});
    WeightedSum sum;
    sum.in[0] = wide;
    sum.weight[0] = static_cast<double>(output.outputs.shape()[0]);  // its mean is over these rows
    sum.terms = 1;
    sum.out = totals;
    sum.accumulate = true;
    pass.backend.weighted_sum(sum);
  }
  std::vector<MetricValue> values(std::span<const double> sums, double rows) const override {
    return {{"loss", sums[0] / (rows > 0.0 ? rows : std::nan(""))}};
  }
};

}  // namespace

MetricRegistry& metrics() {
  static MetricRegistry registry("metric");
  return registry;
}

void register_builtin_metrics() {
  static const bool once = [] {
    metrics().add(
        "classification",
        [](std::int64_t outputs) { return std::make_unique<ClassificationMetric>(outputs); },
        "cross entropy, accuracy, and top 5 beyond 10 classes");
    metrics().add(
        "loss", [](std::int64_t) { return std::make_unique<MeanLoss>(); },
        "the loss that is trained with");
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace starling
