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

/// A number of an evaluation: `test_<name>` in the run's files.
struct MetricValue {
  std::string name;
  double value = 0.0;
  bool share = false;  ///< between 0 and 1, shown in percent; the more the better
  bool rises = false;  ///< the more the better of another number
};

/// Something that is measured on test samples. Sums stay on the device until the last batch, so
/// that no batch waits for the host.
class Metric {
 public:
  virtual ~Metric() = default;
  /// How many sums it keeps.
  virtual std::int64_t sums() const = 0;
  /// What it needs of outputs of this shape a sample and their targets, and they are not: refused
  /// where the config is read. Empty: they are fit.
  virtual std::string needs(const Shape& outputs, const TensorInfo& targets) const {
    (void)outputs, (void)targets;
    return {};
  }
  /// Whether add() takes hidden states with a head (TaskOutput::head). Others get their scores.
  virtual bool takes_head() const { return false; }
  /// Adds a batch to `totals`, fp64 [sums()].
  virtual void add(const Task& task, const TaskOutput& output, const Tensor& totals,
                   Pass& pass) const = 0;
  /// Values that the sums over all ranks come to; `rows` rows of outputs went into them, 0 where
  /// there are no test samples.
  virtual std::vector<MetricValue> values(std::span<const double> sums, double rows) const = 0;
  /// Those that tests of such data come to, without numbers. Error(kUsage) where they cannot.
  virtual std::vector<MetricValue> of_tests(const DatasetInfo& data) const;
};

/// Adds to totals, fp64 [4], what rows of scores come to: their cross entropies, how many have the
/// largest score at their label, with `top5` one of the five largest, and their number. Of equal
/// scores the first is the larger, and one at a label that is NaN is none. labels: int32, a row
/// each; with `ignores` rows of kIgnoreIndex count for nothing. Rows may have padding behind the
/// scores, which holds -infinity.
void add_scores(const Tensor& scores, std::int64_t classes, const Tensor& labels, bool ignores,
                bool top5, const Tensor& totals);

/// balanced_accuracy, the mean of the classes' recalls, and macro_f1, the mean of their F1:
/// scikit-learn's balanced_accuracy_score and f1_score with "macro". Of the one, classes without
/// samples are left out; of the other, those that are also never predicted.
std::vector<MetricValue> class_means(const Confusions& confusion);
/// Whether tests count which classes are taken for which: a sample has one class, and the model a
/// score for each.
bool counts_confusions(const DatasetInfo& data, const Model& model);
/// The values that a test comes to, without numbers.
std::vector<MetricValue> tested_values(const Task& task, const DatasetInfo& data,
                                       const Model& model);
/// The one that says which of two tests is the better: the first share, such as an accuracy;
/// without one the first number, such as a loss. There is a value.
const MetricValue& decisive(const std::vector<MetricValue>& values);

/// Metrics by name, for models with so many outputs.
using MetricRegistry = Registry<std::unique_ptr<Metric>, std::int64_t>;
MetricRegistry& metrics();
void register_builtin_metrics();

}  // namespace starling
