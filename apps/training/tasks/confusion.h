#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "apps/training/tasks/task.h"
#include "comm/world.h"

namespace starling {

/// Of how many test samples of one class each was predicted. Memory grows with the pairs that were
/// seen, not with the classes' square.
struct Confusions {
  /// Of more classes a table would be large.
  static constexpr std::int64_t kMostInTable = 1000;

  std::int64_t classes = 0;  ///< the model's outputs
  /// By label and what was predicted, which is `classes` where an output is no number
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> counts;

  std::int64_t at(std::int64_t label, std::int64_t predicted) const;
  bool lacks_numbers() const;  ///< of some sample
};

/// Notes each batch's labels and largest scores on the device, and counts them in the end: no batch
/// waits for the host.
class ConfusionCounter {
 public:
  /// What so many samples take.
  static double bytes(std::int64_t samples) {
    return static_cast<double>(samples) * (2 * sizeof(std::int32_t) + sizeof(double));
  }

  ConfusionCounter(Backend& backend, std::int64_t classes) : backend_(backend) {
    own_.classes = classes;
  }
  void add(const TaskOutput& output);
  /// Those of all ranks. Collective.
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
