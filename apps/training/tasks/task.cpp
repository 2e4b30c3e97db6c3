#include "apps/training/tasks/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/data/image_collate.h"
#include "apps/training/tasks/metric.h"
#include "core/error.h"
#include "core/text.h"
#include "layers/functions.h"
#include "layers/language_model.h"

namespace starling {
namespace {

/// Numbers in the run's format; whole ones, such as tokens, stay as they are.
Variable forward(Model& model, const Batch& batch, std::string_view input, Pass& pass) {
  Tensor numbers = batch[input];
  if (is_floating(numbers.dtype()))
    numbers = functions::in_format(numbers, batch.format, pass.backend);
  return model.forward(Variable(std::move(numbers)), pass);
}

/// model.num_classes, which says how many numbers are wanted of the model.
std::int64_t asked_of(const ConfigSection& model, std::int64_t usual) {
  return model.resolved().value("num_classes", usual);
}

/// An image, a row of numbers or tokens in, a score for each class out.
class ClassificationTask final : public Task {
 public:
  explicit ClassificationTask(const DatasetInfo& data)
      : Task(data),
        input_(data.find("features") ? *data.find("features")
               : data.find("tokens") ? *data.find("tokens")
                                     : needed("classification", "image")),
        classes_(needed("classification", "label").classes) {}
  Shape input() const override { return input_.shape; }
  std::int64_t outputs() const override { return classes_; }
  void check_model(const Model& model, const ConfigSection& section) const override {
    const Shape& shape = model.output_shape();
    const std::int64_t asked = asked_of(section, classes_);
    if (shape != Shape{asked})
      section.error("type",
                    "the model gives {}, but num_classes is {}; end it with a linear layer of {} "
                    "features, of a vector (flatten, global_avg_pool)",
                    shape.text(), asked, asked);
    if (asked < classes_) {
      const char* assumed = images_of(data()).pictures && data().class_names.empty()
                                ? " (by data.classes, as data.path has no class folders to count)"
                                : "";
      section.error("num_classes", "the model has {}, the data has {}{}; allowed: >= {}",
                    counted(asked, "output"), counted(classes_, "class"), assumed, classes_);
    }
  }
  std::string usual_loss() const override { return "cross_entropy"; }
  std::vector<std::string> usual_metrics() const override { return {"classification"}; }
  TaskOutput predict(Model& model, const Batch& batch, Pass& pass) const override {
    return {forward(model, batch, input_.name, pass), batch["label"]};
  }
  std::string_view target() const override { return "label"; }

 private:
  TensorInfo input_;
  std::int64_t classes_;
};

/// A row of numbers in, a number for each target out.
class RegressionTask final : public Task {
 public:
  explicit RegressionTask(const DatasetInfo& data)
      : Task(data),
        input_(needed("regression", "features").shape),
        target_(needed("regression", "target").shape) {}
  Shape input() const override { return input_; }
  std::int64_t outputs() const override { return target_.elements(); }
  void check_model(const Model& model, const ConfigSection& section) const override {
    if (model.output_shape() != target_)
      section.error("num_classes", "the model's outputs are {}, the targets {}; needed: the same",
                    model.output_shape().text(), target_.text());
    if (const std::int64_t asked = asked_of(section, outputs()); asked != outputs())
      section.error("num_classes", "{} were asked for, the targets are {}; needed: the same", asked,
                    target_.text());
  }
  std::string usual_loss() const override { return "mse"; }
  std::vector<std::string> usual_metrics() const override { return {"loss", "r2", "mae", "mse"}; }
  TaskOutput predict(Model& model, const Batch& batch, Pass& pass) const override {
    return {forward(model, batch, "features", pass), batch["target"]};
  }
  std::string_view target() const override { return "target"; }

 private:
  Shape input_, target_;
};

/// Tokens {T} in, scores of the next ones out, against targets {T}; kIgnoreIndex is ignored.
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

}  // namespace

Task::Task(const DatasetInfo& data) : data_(data) {}
Task::~Task() = default;

Variable Task::loss(const TaskOutput& output, double share, Pass& pass) const {
  require(loss_ != nullptr, "task", "has no loss");
  const Tape::Scope scope(pass.tape, loss_layer_);
  const Variable loss = named("loss", loss_name_, [&] {
    return loss_->value(output.outputs, output.targets, share, pass);
  });
  if (!loss.has_value() || loss.shape().elements() != 1) {
    fail(ExitCode::kUsage, "loss", {.key = loss_name_}, "its value is {}; it must be one number",
         loss.has_value() ? loss.shape().text() : "none");
  }
  return loss;
}

void Task::share_targets(std::int64_t classes) {
  for (TensorInfo& tensor : data_.tensors) {
    if (tensor.name == target())
      tensor = {.name = tensor.name, .shape = Shape{classes}, .dtype = DType::kFloat32};
  }
}

void Task::know_sizes(const DatasetInfo& opened) {
  data_.train_samples = opened.train_samples;
  data_.test_samples = opened.test_samples;
  data_.test_bytes = opened.test_bytes;
  data_.target_deviation = opened.target_deviation;
}

void Task::set_metrics(std::vector<std::unique_ptr<Metric>> metrics) {
  metrics_ = std::move(metrics);
}

const TensorInfo& Task::needed(std::string_view task, std::string_view tensor) const {
  if (const TensorInfo* found = data_.find(tensor)) return *found;
  std::string known;
  for (const TensorInfo& other : data_.tensors) known += (known.empty() ? "" : ", ") + other.name;
  fail(ExitCode::kUsage, "config", {.key = "task.type"},
       "{} needs samples with a tensor '{}'; this data set has: {}", task, tensor, known);
}

TaskRegistry& tasks() {
  static TaskRegistry registry("task");
  return registry;
}

void register_builtin_tasks() {
  static const bool once = [] {
    tasks().add(
        "classification",
        [](ConfigSection&, const DatasetInfo& data) {
          return std::make_unique<ClassificationTask>(data);
        },
        "images, rows of a table, or tokens, to classes");
    tasks().add(
        "regression",
        [](ConfigSection&, const DatasetInfo& data) {
          return std::make_unique<RegressionTask>(data);
        },
        "rows of a table to numbers");
    tasks().add(
        "language_model",
        [](ConfigSection&, const DatasetInfo& data) {
          return std::make_unique<LanguageModelTask>(data);
        },
        "tokens to the token that follows each; the loss is the mean over an update's targets");
    return true;
  }();
  static_cast<void>(once);
}

std::unique_ptr<Task> classification_task(const Shape& image, std::int64_t classes,
                                          double label_smoothing) {
  register_builtin_losses();
  auto task = std::make_unique<ClassificationTask>(
      DatasetInfo{.tensors = {{"image", image, DType::kUInt8, 0, PixelScale{}},
                              {"label", Shape{}, DType::kInt32, classes}},
                  .classes = classes});
  const nlohmann::json keys{{"label_smoothing", label_smoothing}};
  ConfigSection section(keys, "loss");
  task->set_loss(losses().make(task->usual_loss(), "loss.type", section));
  return task;
}

}  // namespace starling
