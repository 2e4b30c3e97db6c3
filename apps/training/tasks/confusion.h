#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "apps/training/tasks/task.h"
#include "comm/world.h"

namespace starling {

/// A sparse confusion matrix: memory grows with the pairs that occur.
struct Confusions {
  /// Above this, no dense table is written.
  static constexpr std::int64_t kMostInTable = 1000;

  std::int64_t classes = 0;  ///< the model's outputs
  /// By label and prediction, which is `classes` if an output is NaN
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> counts;

  std::int64_t at(std::int64_t label, std::int64_t predicted) const;
  bool lacks_numbers() const;  ///< for some sample
};

/// Keeps each batch's labels and predictions on the device until the end: no batch waits.
class ConfusionCounter {
 public:
  /// Memory for this number of samples.
  static double bytes(std::int64_t samples) {
    return static_cast<double>(samples) * (2 * sizeof(std::int32_t) + sizeof(double));
  }

  ConfusionCounter(Backend& backend, std::int64_t classes) : backend_(backend) {
    own_.classes = classes;
  }
  void add(const TaskOutput& output);
  /// The sum over all ranks. Collective.
  Confusions total(World& world);

 private:
  struct Predictions {
    Tensor labels, places, scores;
  };
  Backend& backend_;
  Confusions own_;
  std::vector<Predictions> batches_;
};

}  // namespace starling
