#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "apps/training/tasks/task.h"
#include "comm/world.h"

namespace starling {

/// Of how many test samples of one class each was predicted. Memory grows with the pairs that were
/// seen, not with the classes' square.
struct Confusions {
  Confusions() = default;
  /// Of a table of classes × (classes + 1), as the operation ConfusionCounts fills it.
  explicit Confusions(std::span<const double> table);

  std::int64_t classes = 0;  ///< the model's outputs
  /// By label and what was predicted, which is `classes` where an output is no number
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> counts;

  std::int64_t at(std::int64_t label, std::int64_t predicted) const;
  bool lacks_numbers() const;  ///< of some sample
};

/// Counts batch by batch. Of up to kMostInTable classes a table on the device does, so that no
/// batch waits for the host; of more, whose table would be large, the host looks at each batch.
class ConfusionCounter {
 public:
  static constexpr std::int64_t kMostInTable = 1000;

  /// What it takes: the table, or a batch's outputs twice.
  static double bytes(std::int64_t classes, std::int64_t batch_size) {
    const std::int64_t numbers =
        classes > kMostInTable ? 2 * batch_size * classes : classes * (classes + 1);
    return static_cast<double>(numbers) * sizeof(double);
  }

  ConfusionCounter(Backend& backend, std::int64_t classes);
  void add(const TaskOutput& output);
  /// Those of all ranks. Collective.
  Confusions total(World& world);

 private:
  Backend& backend_;
  Confusions own_;
  Tensor table_;  ///< empty: of too many classes
};

}  // namespace starling
