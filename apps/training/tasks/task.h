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

/// What a loss and metrics compare: a row of outputs for each target.
struct TaskOutput {
  Variable outputs;
  Tensor targets;
  /// Outputs are hidden states, whose product with it, [classes, width], are scores; null: outputs
  /// are what the model's are
  Parameter* head = nullptr;
};

/// A task is what the trainer trains: a batch's named tensors in, loss and metrics out. A task says
/// which tensors it wants and how the model is run on them; the loss and the metrics are chosen by
/// the config.
class Task {
 public:
  explicit Task(const DatasetInfo& data);
  virtual ~Task();
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  /// Shape of one sample, as the model takes it.
  virtual Shape input() const = 0;
  /// The default of `model.num_classes`.
  virtual std::int64_t outputs() const = 0;
  /// Error(kUsage) through section.error() where the model's outputs do not suit.
  virtual void check_model(const Model& model, const ConfigSection& section) const = 0;
  /// Defaults of `loss.type` and `task.metrics`.
  virtual std::string usual_loss() const = 0;
  virtual std::vector<std::string> usual_metrics() const = 0;
  virtual TaskOutput predict(Model& model, const Batch& batch, Pass& pass) const = 0;
  /// The sample's tensor that outputs are compared with; empty: none is. One class number a sample
  /// becomes a share of each class, [outputs], where images are mixed.
  virtual std::string_view target() const { return {}; }
  /// Whether targets may be functions::kIgnoreIndex and count for nothing. Then the loss is the
  /// mean over an update's targets that count, however they are cut into micro-batches, and ranks
  /// where they take one gradient's mean.
  virtual bool ignores() const { return false; }
  /// Targets of a sample that rates count, such as tokens; 0: samples are what is counted.
  virtual std::int64_t targets_of_sample() const { return 0; }
  /// The mean over the batch times `share`.
  virtual Variable loss(const TaskOutput& output, double share, Pass& pass) const;

  /// Tensors of a sample in training: the data's, but for the target once share_targets() has been
  /// called.
  const std::vector<TensorInfo>& tensors() const { return data_.tensors; }
  const std::vector<std::unique_ptr<Metric>>& metrics() const { return metrics_; }
  /// `name`: as errors have it, Registry::whose().
  void set_loss(std::unique_ptr<Loss> loss, const std::string& name = {}) {
    loss_ = std::move(loss);
    loss_name_ = name;
    loss_layer_ = name.empty() ? "loss" : "loss " + name;
  }
  void set_name(std::string name) { name_ = std::move(name); }
  const std::string& name() const { return name_; }
  const Loss* loss() const { return loss_.get(); }
  void set_class_weights(const std::vector<double>& weights) { loss_->set_class_weights(weights); }
  /// Training's batches hold shares of so many classes.
  void share_targets(std::int64_t classes);
  void set_metrics(std::vector<std::unique_ptr<Metric>> metrics);
  const DatasetInfo& data() const { return data_; }
  /// What the data set knows once it is open: how many samples, and of how much text.
  void know_sizes(const DatasetInfo& opened);

 protected:
  /// The declaration of a tensor that the task needs; Error(kUsage) naming task and tensor where
  /// the data has none.
  const TensorInfo& needed(std::string_view task, std::string_view tensor) const;

 private:
  DatasetInfo data_;
  std::string name_, loss_name_, loss_layer_;
  std::unique_ptr<Loss> loss_;
  std::vector<std::unique_ptr<Metric>> metrics_;
};

/// Tasks by `task.type`; a maker reads all keys but `type` and `metrics`.
using TaskRegistry = Registry<std::unique_ptr<Task>, ConfigSection&, const DatasetInfo&>;
TaskRegistry& tasks();
void register_builtin_tasks();

/// Image classification with a loss, for benchmarks and tests that have no config.
std::unique_ptr<Task> classification_task(const Shape& image, std::int64_t classes,
                                          double label_smoothing = 0.0);

}  // namespace starling
