#include "apps/training/tasks/language_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/tasks/metric.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/text.h"
#include "core/view.h"
#include "layers/functions.h"
#include "layers/language_model.h"

namespace starling {
namespace {

class LanguageModelTask final : public Task {
 public:
  explicit LanguageModelTask(const DatasetInfo& data)
      : Task(data),
        tokens_(needed("language_model", "tokens")),
        targets_(needed("language_model", "targets")) {
    if (tokens_.shape.rank() == 1 && targets_.shape == tokens_.shape &&
        tokens_.dtype == DType::kInt32 && targets_.dtype == DType::kInt32 && targets_.classes > 0)
      return;
    fail(ExitCode::kUsage, "config", {.key = "task.type"},
         "language_model needs tokens and targets of int32 {{T}}, the targets of so "
         "many classes; these are {} of {} and {} of {}, {}",
         tokens_.shape.text(), name_of(tokens_.dtype), targets_.shape.text(),
         name_of(targets_.dtype), starling::counted(targets_.classes, "class"));
  }
  Shape input() const override { return tokens_.shape; }
  std::int64_t outputs() const override { return std::max(tokens_.classes, targets_.classes); }
  void check_model(const Model& model, const ConfigSection& section) const override {
    const Shape& shape = model.output_shape();
    if (shape.rank() != 2 || shape[0] != tokens_.shape[0])
      section.error("type",
                    "the model gives {}, but a score for each token of the vocabulary is needed at "
                    "each of {} places: {}",
                    shape.text(), tokens_.shape[0], Shape{tokens_.shape[0], outputs()}.text());
    if (data().find("positions") && !model.language_model())
      section.error("type",
                    "the samples have several documents, and this model cannot keep attention "
                    "within one; needed: gpt2, llama or another language model of its kind, or "
                    "data without `documents` and `pack`");
    if (shape[1] < outputs())
      section.error(model.language_model() ? "vocab" : "",
                    "the model has scores for {}, the data has {}; allowed: as many or more",
                    starling::counted(shape[1], "token"), outputs());
  }
  std::string usual_loss() const override { return "cross_entropy"; }
  std::vector<std::string> usual_metrics() const override { return {"language_model"}; }
  std::string_view target() const override { return "targets"; }
  bool ignores() const override { return data().ignores(); }
  std::int64_t targets_of_sample() const override { return targets_.shape[0]; }

  TaskOutput predict(Model& model, const Batch& batch, Pass& pass) const override {
    const Variable tokens(batch["tokens"]);
    const Tensor* const positions = batch.find("positions");
    pass.positions = positions ? *positions : Tensor();
    LanguageModel* const text = model.language_model();
    if (!text || !loss() || !loss()->is_cross_entropy())
      return {model.forward(tokens, pass), batch["targets"]};
    return {text->hidden(tokens, pass), batch["targets"], &text->head()};
  }
  Variable loss(const TaskOutput& output, double share, Pass& pass) const override {
    if (!output.head) return Task::loss(output, share, pass);
    return named("loss", "", [&] {
      return functions::linear_cross_entropy(output.outputs, *output.head, output.targets, share,
                                             pass);
    });
  }
  using Task::loss;

 private:
  TensorInfo tokens_, targets_;
};

class LanguageModelMetric final : public Metric {
 public:
  /// `only`: the one value that it gives; empty: all that there are.
  explicit LanguageModelMetric(std::string only = {}) : only_(std::move(only)) {}
  std::int64_t sums() const override { return 5; }
  bool takes_head() const override { return true; }
  std::string needs(const Shape& outputs, const TensorInfo& targets) const override {
    const bool rows = outputs.elements() == targets.shape.elements() * outputs.back();
    return rows && targets.dtype == DType::kInt32 ? "" : "a class number for each row of outputs";
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

}  // namespace

void add_language_model_task(TaskRegistry& registry) {
  registry.add(
      "language_model",
      [](ConfigSection&, const DatasetInfo& data) {
        return std::make_unique<LanguageModelTask>(data);
      },
      "tokens to the token that follows each; the loss is the mean over an update's targets");
}

void add_language_model_metrics(MetricRegistry& registry) {
  const auto add = [&](const char* name, const char* only, const char* doc) {
    registry.add(
        name, [only](std::int64_t) { return std::make_unique<LanguageModelMetric>(only); }, doc);
  };
  add("language_model", "",
      "loss over all targets, perplexity, bits_per_byte and token_accuracy, in one pass");
  add("perplexity", "perplexity", "e to the mean cross entropy over all test targets");
  add("bits_per_byte", "bits_per_byte",
      "the targets' cross entropies in bits over the bytes of text that they are");
  add("token_accuracy", "token_accuracy", "share of the targets whose score is the largest");
}

}  // namespace starling
