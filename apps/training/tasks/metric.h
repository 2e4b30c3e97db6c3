#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/training/tasks/confusion.h"
#include "apps/training/tasks/task.h"
#include "core/registry.h"

namespace starling {

/// A value of an evaluation: `test_<name>` in the run's files.
struct MetricValue {
  std::string name;
  double value = 0.0;
  bool share = false;  ///< between 0 and 1, shown in percent; higher is better
  bool rises = false;  ///< for other values: higher is better
};

/// A metric of test samples. Sums stay on the device until the last batch, so that no batch waits
/// for the host.
class Metric {
 public:
  virtual ~Metric() = default;
  /// The number of sums.
  virtual std::int64_t sums() const = 0;
  /// What is required of the outputs' shape per sample and the targets but not fulfilled; empty:
  /// they are suitable. Checked when the config is read.
  virtual std::string needs(const Shape& outputs, const TensorInfo& targets) const {
    (void)outputs, (void)targets;
    return {};
  }
  /// Whether add() accepts hidden states with a head (TaskOutput::head); otherwise it gets scores.
  virtual bool takes_head() const { return false; }
  /// Adds a batch to `totals`, fp64 [sums()].
  virtual void add(const Task& task, const TaskOutput& output, const Tensor& totals,
                   Pass& pass) const = 0;
  /// Computes the values from sums over all ranks. `rows`: of outputs; 0 without test samples.
  virtual std::vector<MetricValue> values(std::span<const double> sums, double rows) const = 0;
  /// The values that tests of such data will have, without numbers. Error(kUsage) if not
  /// applicable.
  virtual std::vector<MetricValue> of_tests(const DatasetInfo& data) const;
};

/// Adds to totals, fp64 [4], for rows of scores: the sum of cross entropies, the number whose label
/// has the largest score, with `top5` one of the five largest, and the number of rows. Of equal
/// scores the first counts as larger; NaN at the label is wrong. labels: int32, one per row; with
/// `ignores` rows of kIgnoreIndex are skipped. Rows may end with padding of -infinity.
void add_scores(const Tensor& scores, std::int64_t classes, const Tensor& labels, bool ignores,
                bool top5, const Tensor& totals);

/// balanced_accuracy, the mean of the classes' recalls, and macro_f1, the mean of their F1:
/// scikit-learn's balanced_accuracy_score and f1_score with "macro". The former excludes classes
/// without samples, the latter only those that are also never predicted.
std::vector<MetricValue> class_means(const Confusions& confusion);
/// Whether tests have a confusion matrix: each sample has one class, and the model a score for
/// each.
bool counts_confusions(const DatasetInfo& data, const Model& model);
/// The values that a test will have, without numbers.
std::vector<MetricValue> tested_values(const Task& task, const DatasetInfo& data,
                                       const Model& model);
/// The value by which tests are compared: the first share, such as an accuracy, otherwise the first
/// value, such as a loss. `values` must not be empty.
const MetricValue& decisive(const std::vector<MetricValue>& values);

/// Metrics by name, for a number of outputs.
using MetricRegistry = Registry<std::unique_ptr<Metric>, std::int64_t>;
MetricRegistry& metrics();
void register_builtin_metrics();

}  // namespace starling
