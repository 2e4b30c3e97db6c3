#include "apps/trainer/tasks/task.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "apps/trainer/tasks/metric.h"
#include "core/error.h"
#include "layers/functions.h"

namespace starling {
namespace {

/// An image in, a score for each class out.
class ClassificationTask final : public Task {
 public:
  explicit ClassificationTask(const DatasetInfo& data)
      : Task(data),
        image_(needed("classification", "image").shape),
        classes_(needed("classification", "label").classes) {}
  Shape input() const override { return image_; }
  std::int64_t outputs() const override { return classes_; }
  void check_model(const Model& model, const ConfigSection& section) const override {
    const Shape& shape = model.output_shape();
    if (shape.rank() != 1)
      section.error("", "gives outputs of shape {}, needed: a vector of class scores",
                    shape.text());
    if (shape.back() < classes_) {
      const char* assumed = data().pictures && data().class_names.empty()
                                ? " (by data.classes, as data.path has no class folders to count)"
                                : "";
      section.error("num_classes",
                    "the model has {} outputs, the data has {} classes{}; allowed: >= {}",
                    shape.back(), classes_, assumed, classes_);
    }
  }
  std::string usual_loss() const override { return "cross_entropy"; }
  std::vector<std::string> usual_metrics() const override { return {"classification"}; }
  TaskOutput predict(Model& model, const Batch& batch, Pass& pass) const override {
    return {model.forward(
                Variable(functions::in_format(batch["image"], batch.format, pass.backend)), pass),
            batch["label"]};
  }
  std::string_view shared_target() const override { return "label"; }

 private:
  Shape image_;
  std::int64_t classes_;
};

}  // namespace

Task::Task(const DatasetInfo& data) : data_(data) {}
Task::~Task() = default;

Variable Task::loss(const TaskOutput& output, double share, Pass& pass) const {
  require(loss_ != nullptr, "task", "has no loss");
  const Variable loss =
      named("loss", "", [&] { return loss_->value(output.outputs, output.targets, share, pass); });
  if (!loss.has_value() || loss.shape().elements() != 1) {
    fail(ExitCode::kUsage, "loss", "its value is {}; it must be one number",
         loss.has_value() ? loss.shape().text() : "none");
  }
  return loss;
}

void Task::share_targets(std::int64_t classes) {
  for (TensorInfo& tensor : data_.tensors) {
    if (tensor.name == shared_target())
      tensor = {.name = tensor.name, .shape = Shape{classes}, .dtype = DType::kFloat32};
  }
}

void Task::set_metrics(std::vector<std::unique_ptr<Metric>> metrics) {
  metrics_ = std::move(metrics);
}

const TensorInfo& Task::needed(std::string_view task, std::string_view tensor) const {
  if (const TensorInfo* found = data_.find(tensor)) return *found;
  std::string known;
  for (const TensorInfo& other : data_.tensors) known += (known.empty() ? "" : ", ") + other.name;
  fail(ExitCode::kUsage, "config",
       "task.type: {} needs samples with a tensor '{}'; this data set has: {}", task, tensor,
       known);
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
        "images to classes");
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
