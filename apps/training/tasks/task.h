#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/training/tasks/loss.h"
#include "core/config.h"
#include "core/registry.h"
#include "layers/layer.h"

namespace starling {

class Metric;

/// What loss and metrics use: a row of outputs for each target.
struct TaskOutput {
  Variable outputs;
  Tensor targets;
  /// If not null, outputs are hidden states, and scores their product with this [classes, width]
  Parameter* head = nullptr;
};

/// What is trained: maps a batch's named tensors to loss and metrics. A task defines which tensors
/// it needs and how the model is run on them; the config selects loss and metrics.
class Task {
 public:
  explicit Task(const DatasetInfo& data);
  virtual ~Task();
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  /// Shape of one sample of the model's input.
  virtual Shape input() const = 0;
  /// The default of `model.num_classes`.
  virtual std::int64_t outputs() const = 0;
  /// Error(kUsage) through section.error() if the model's outputs are unsuitable.
  virtual void check_model(const Model& model, const ConfigSection& section) const = 0;
  /// Defaults of `loss.type` and `task.metrics`.
  virtual std::string usual_loss() const = 0;
  virtual std::vector<std::string> usual_metrics() const = 0;
  virtual TaskOutput predict(Model& model, const Batch& batch, Pass& pass) const = 0;
  /// The tensor that outputs are compared with; empty: none. If images are mixed, a class index per
  /// sample becomes probabilities of classes, [outputs].
  virtual std::string_view target() const { return {}; }
  /// Whether targets may be ignored (functions::kIgnoreIndex). Then the loss is the mean over all
  /// other targets of an update, independent of its micro-batches, and of ranks if they average
  /// gradients.
  virtual bool ignores() const { return false; }
  /// Targets per sample for throughput, such as tokens; 0: samples are counted.
  virtual std::int64_t targets_of_sample() const { return 0; }
  /// The mean over the batch times `share`.
  virtual Variable loss(const TaskOutput& output, double share, Pass& pass) const;

  /// Tensors of a training sample: the data's, except the target after share_targets().
  const std::vector<TensorInfo>& tensors() const { return data_.tensors; }
  const std::vector<std::unique_ptr<Metric>>& metrics() const { return metrics_; }
  /// `name`: for errors, Registry::whose().
  void set_loss(std::unique_ptr<Loss> loss, const std::string& name = {}) {
    loss_ = std::move(loss);
    loss_name_ = name;
    loss_layer_ = name.empty() ? "loss" : "loss " + name;
  }
  void set_name(std::string name) { name_ = std::move(name); }
  const std::string& name() const { return name_; }
  const Loss* loss() const { return loss_.get(); }
  void set_class_weights(const std::vector<double>& weights) { loss_->set_class_weights(weights); }
  /// Targets of training batches are probabilities of this number of classes.
  void share_targets(std::int64_t classes);
  void set_metrics(std::vector<std::unique_ptr<Metric>> metrics);
  const DatasetInfo& data() const { return data_; }
  /// Called when the data set is open, with the numbers of samples and bytes of text.
  void know_sizes(const DatasetInfo& opened);

 protected:
  /// The declaration of a tensor that the task needs. Error(kUsage) with task and tensor if the
  /// data lacks it.
  const TensorInfo& needed(std::string_view task, std::string_view tensor) const;

 private:
  DatasetInfo data_;
  std::string name_, loss_name_, loss_layer_;
  std::unique_ptr<Loss> loss_;
  std::vector<std::unique_ptr<Metric>> metrics_;
};

/// Tasks by `task.type`; a registered function reads all keys but `type` and `metrics`.
using TaskRegistry = Registry<std::unique_ptr<Task>, ConfigSection&, const DatasetInfo&>;
TaskRegistry& tasks();
void register_builtin_tasks();

/// Image classification with a loss, for benchmarks and tests without a config.
std::unique_ptr<Task> classification_task(const Shape& image, std::int64_t classes,
                                          double label_smoothing = 0.0);

}  // namespace starling
