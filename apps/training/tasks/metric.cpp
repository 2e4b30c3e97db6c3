#include "apps/training/tasks/metric.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <utility>

#include "core/error.h"
#include "core/operations/along.h"
#include "core/operations/checker.h"
#include "core/operations/losses.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "core/view.h"
#include "layers/functions.h"

namespace starling {
namespace {

/// Adds weight times a number of any format to the metric's sum at `place`.
void add_to(const Tensor& totals, std::int64_t place, const Tensor& number, double weight,
            Backend& backend) {
  backend.weighted_sum(
      {.in = {functions::in_format(number, DType::kFloat64, backend).reshaped({1})},
       .weight = {weight},
       .terms = 1,
       .out = totals.slice(place, Shape{1}),
       .accumulate = true});
}

/// Metric::needs() of those that compare scores with the number of a class.
std::string needs_classes(const Shape& outputs, const TensorInfo& targets) {
  const bool rows = outputs.elements() == targets.shape.elements() * outputs.back();
  return rows && targets.dtype == DType::kInt32 ? "" : "a class number for each row of outputs";
}

/// The plain cross entropy, and how often the label's score is the largest or among the five
/// largest.
class ClassificationMetric final : public Metric {
 public:
  explicit ClassificationMetric(std::int64_t outputs) : top5_(outputs > 10) {}
  std::int64_t sums() const override { return 4; }
  std::string needs(const Shape& outputs, const TensorInfo& targets) const override {
    return needs_classes(outputs, targets);
  }
  void add(const Task& task, const TaskOutput& output, const Tensor& totals, Pass&) const override {
    const Tensor& scores = output.outputs.value();
    add_scores(scores, scores.shape().back(), output.targets, task.ignores(), top5_, totals);
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

/// Loss over all test targets, perplexity, bits_per_byte and token_accuracy.
class LanguageModelMetric final : public Metric {
 public:
  /// `only`: the one value that it gives; empty: all that there are.
  explicit LanguageModelMetric(std::string only = {}) : only_(std::move(only)) {}
  std::int64_t sums() const override { return 5; }
  bool takes_head() const override { return true; }
  std::string needs(const Shape& outputs, const TensorInfo& targets) const override {
    return needs_classes(outputs, targets);
  }
  void add(const Task& task, const TaskOutput& output, const Tensor& totals,
           Pass& pass) const override {
    Backend& backend = pass.backend;
    const Tensor& x = output.outputs.value();
    const std::int64_t rows = output.targets.elements(), width = x.shape().back();
    const Tensor outputs = x.reshaped({rows, width}), labels = output.targets.reshaped({rows});
    const auto count = [&](const View& logits, const Tensor& of) {
      add_scores(logits.tensor(), logits.shape()[1], of, true, false, totals);
    };
    if (const DatasetInfo& data = task.data(); data.test_bytes > 0.0) {
      const Tensor one(backend, Shape{1}, DType::kFloat64);
      backend.fill(one, 1.0);
      const double samples =
          static_cast<double>(x.shape()[0]) / static_cast<double>(data.test_samples);
      backend.weighted_sum({.in = {one},
                            .weight = {*data.test_bytes * samples},
                            .terms = 1,
                            .out = totals.slice(4, Shape{1}),
                            .accumulate = true});
    }
    if (!output.head) return count(outputs, labels);
    functions::logits_by_rows(
        backend, outputs, output.head->operand(), 0,
        [&](std::int64_t first, const View& logits) {
          count(logits, labels.slice(first, {logits.shape()[0]}));
        },
        -std::numeric_limits<double>::infinity());
  }
  std::vector<MetricValue> values(std::span<const double> sums, double) const override {
    const double loss = sums[0] / (sums[3] > 0.0 ? sums[3] : std::nan(""));
    std::vector<MetricValue> values{{"loss", loss}, {"perplexity", std::exp(loss)}};
    if (sums[4] > 0.0) values.push_back({"bits_per_byte", sums[0] / std::numbers::ln2 / sums[4]});
    // No share: a test is the better for its loss
    values.push_back({"token_accuracy", sums[1] / sums[3], false, true});
    std::erase_if(values,
                  [&](const MetricValue& value) { return !only_.empty() && value.name != only_; });
    return values;
  }
  std::vector<MetricValue> of_tests(const DatasetInfo& data) const override {
    if (only_ == "bits_per_byte" && !data.test_bytes)
      fail(ExitCode::kUsage, "config", {.key = "task.metrics"},
           "has bits_per_byte, but nobody knows how many bytes a token of this data is; give "
           "data.tokenizer, or leave it out");
    const double sums[] = {0.0, 0.0, 0.0, 0.0, data.test_bytes ? 1.0 : 0.0};
    return values(sums, 0.0);
  }

 private:
  std::string only_;
};

/// The loss that is trained with, whatever it is.
class MeanLoss final : public Metric {
 public:
  std::int64_t sums() const override { return 1; }
  bool takes_head() const override { return true; }
  void add(const Task& task, const TaskOutput& output, const Tensor& totals,
           Pass& pass) const override {
    const auto rows = static_cast<double>(output.outputs.shape()[0]);  // its mean is over these
    add_to(totals, 0, task.loss(output, 1.0, pass).value(), rows, pass.backend);
  }
  std::vector<MetricValue> values(std::span<const double> sums, double rows) const override {
    return {{"loss", sums[0] / (rows > 0.0 ? rows : std::nan(""))}};
  }
};

/// Outputs against targets that are as many numbers, in fp64.
class NumberMetric final : public Metric {
 public:
  enum class Kind : std::uint8_t { kMse, kMae, kR2 };
  NumberMetric(Kind kind, std::int64_t outputs) : kind_(kind), outputs_(outputs) {}
  std::int64_t sums() const override { return kind_ == Kind::kR2 ? 3 : 1; }
  std::string needs(const Shape& outputs, const TensorInfo& targets) const override {
    const bool numbers = is_floating(targets.dtype) && targets.shape == outputs;
    return numbers ? "" : "a number for each output";
  }
  void add(const Task& task, const TaskOutput& output, const Tensor& totals,
           Pass& pass) const override {
    Backend& backend = pass.backend;
    const double unit = task.data().target_deviation;  // r2 is a ratio, which has none
    const Tensor outputs = output.outputs.value();
    if (output.targets.shape() != outputs.shape() || !is_floating(output.targets.dtype())) {
      fail(ExitCode::kUsage, "metric",
           "outputs {} and targets {} of {}; needed: a number for each output",
           outputs.shape().text(), output.targets.shape().text(), name_of(output.targets.dtype()));
    }
    const std::int64_t count = outputs.elements();
    const auto column = [&](const Tensor& numbers) {
      return functions::in_format(numbers, DType::kFloat64, backend).reshaped({count, 1});
    };
    const Tensor x = column(outputs), t = column(output.targets);
    const Tensor errors(backend, Shape{}, DType::kFloat64);
    backend.target_loss({.kind = kind_ == Kind::kMae ? LossKind::kAbsolute : LossKind::kSquared,
                         .x = x,
                         .targets = t,
                         .loss = errors});
    add_to(totals, 0, errors,
           kind_ == Kind::kMae   ? unit
           : kind_ == Kind::kMse ? unit * unit
                                 : 1.0,
           backend);
    if (kind_ != Kind::kR2) return;
    const Tensor ones(backend, t.shape(), DType::kFloat64);
    backend.fill(ones, 1.0);
    const auto put_product = [&](std::int64_t place, const Tensor& factor) {
      const Tensor sum(backend, Shape{1, 1}, DType::kFloat64);
      backend.matmul({.a = factor.reshaped({1, count}), .b = t, .c = sum});
      add_to(totals, place, sum, 1.0, backend);
    };
    put_product(1, ones);
    put_product(2, t);
  }
  std::vector<MetricValue> values(std::span<const double> sums, double rows) const override {
    const double count = rows > 0.0 ? rows * static_cast<double>(outputs_) : std::nan("");
    if (kind_ == Kind::kMse) return {{"mse", sums[0] / count}};
    if (kind_ == Kind::kMae) return {{"mae", sums[0] / count}};
    // Of targets that are all the same, to what their sums' rounding lets through, there is none.
    const double spread = sums[2] - sums[1] * sums[1] / count,
                 rounding = 8.0 * std::numeric_limits<double>::epsilon() * std::sqrt(count);
    const bool differ = spread > rounding * sums[2];
    return {{"r2", differ ? 1.0 - sums[0] / spread : std::nan(""), false, true}};
  }

 private:
  Kind kind_;
  std::int64_t outputs_;
};

}  // namespace

void add_scores(const Tensor& scores, std::int64_t classes, const Tensor& labels, bool ignores,
                bool top5, const Tensor& totals) {
  Backend& backend = scores.backend();
  const std::int64_t rows = labels.elements(), line = scores.shape().back();
  const DType wide = wide_of(scores.dtype());
  TargetLoss losses{.x = scores.reshaped({rows, line}),
                    .targets = labels.reshaped({rows}),
                    .loss = Tensor(backend, Shape{}, wide),
                    .total = totals.slice(3, Shape{}),
                    .classes = classes < line ? classes : 0};
  if (ignores) losses.ignored = functions::kIgnoreIndex;
  backend.target_loss(losses);
  add_to(totals, 0, losses.loss, 1.0, backend);
  const Tensor right = functions::in_format(labels, wide, backend).reshaped({rows, 1});
  const auto add_among = [&](std::int64_t k, std::int64_t place) {
    const Tensor values(backend, {rows, k, 1}, scores.dtype()),
        index(backend, {rows, k, 1}, DType::kInt32);
    backend.topk({.x = scores.reshaped({rows, line, 1}), .values = values, .index = index});
    using F = MapFunction;
    Reduce hits(
        {{F::kEqual, 0, 1}, {F::kEqual, 2, 2}, {F::kMultiply, kMapResults, kMapResults + 1}},
        {functions::in_format(index, wide, backend).reshaped({rows, k}), right,
         values.reshaped({rows, k})},
        totals.slice(place, Shape{}));
    hits.accumulate = true;
    backend.reduce(hits);
  };
  add_among(1, 1);
  if (top5) add_among(std::min<std::int64_t>(5, classes), 2);
}

std::vector<MetricValue> Metric::of_tests(const DatasetInfo&) const {
  return values(std::vector<double>(static_cast<std::size_t>(sums()), 0.0), 0.0);
}

std::vector<MetricValue> class_means(const Confusions& confusion) {
  struct OfClass {
    double samples = 0.0, predicted = 0.0;
  };
  std::map<std::int64_t, OfClass> classes;  // in their order, which is that of the sums
  for (const auto& [pair, count] : confusion.counts) {
    classes[pair.first].samples += static_cast<double>(count);
    if (pair.second < confusion.classes)
      classes[pair.second].predicted += static_cast<double>(count);
  }
  double recalls = 0.0, with_samples = 0.0, f1 = 0.0;
  for (const auto& [c, of] : classes) {
    const auto right = static_cast<double>(confusion.at(c, c));
    if (of.samples > 0.0) {
      recalls += right / of.samples;
      with_samples += 1.0;
    }
    f1 += 2.0 * right / (of.samples + of.predicted);
  }
  const auto known = static_cast<double>(classes.size());
  return {{"balanced_accuracy", recalls / (with_samples > 0.0 ? with_samples : std::nan("")), true},
          {"macro_f1", f1 / (known > 0.0 ? known : std::nan("")), true}};
}

bool counts_confusions(const DatasetInfo& data, const Model& model) {
  const TensorInfo* label = data.find("label");
  return label && label->shape.rank() == 0 && label->classes > 0 &&
         model.output_shape().rank() == 1;
}

std::vector<MetricValue> tested_values(const Task& task, const DatasetInfo& data,
                                       const Model& model) {
  std::vector<MetricValue> values;
  for (const auto& metric : task.metrics()) {
    for (MetricValue& value : metric->of_tests(data)) values.push_back(std::move(value));
  }
  if (!counts_confusions(data, model)) return values;
  for (MetricValue& value : class_means(Confusions())) values.push_back(std::move(value));
  return values;
}

const MetricValue& decisive(const std::vector<MetricValue>& values) {
  const auto share = std::ranges::find_if(values, &MetricValue::share);
  return share != values.end() ? *share : values.front();
}

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
    const auto add_text = [](const char* name, const char* only, const char* doc) {
      metrics().add(
          name, [only](std::int64_t) { return std::make_unique<LanguageModelMetric>(only); }, doc);
    };
    add_text("language_model", "",
             "loss over all targets, perplexity, bits_per_byte and token_accuracy, in one pass");
    add_text("perplexity", "perplexity", "e to the mean cross entropy over all test targets");
    add_text("bits_per_byte", "bits_per_byte",
             "the targets' cross entropies in bits over the bytes of text that they are");
    add_text("token_accuracy", "token_accuracy", "share of the targets whose score is the largest");
    const auto add = [](const char* name, NumberMetric::Kind kind, const char* doc) {
      metrics().add(
          name,
          [kind](std::int64_t outputs) { return std::make_unique<NumberMetric>(kind, outputs); },
          doc);
    };
    add("mse", NumberMetric::Kind::kMse, "mean of the squared differences from numbers");
    add("mae", NumberMetric::Kind::kMae, "mean of the differences' sizes");
    add("r2", NumberMetric::Kind::kR2,
        "1 - squared differences / those of the targets from their mean: 1 is exact");
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace starling
