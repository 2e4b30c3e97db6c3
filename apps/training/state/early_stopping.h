#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/training/tasks/metric.h"
#include "core/config.h"

namespace starling {

/// By what value of tests the better one is told.
struct Decisive {
  std::string metric;  ///< "test_accuracy"
  bool rises = false;  ///< the more the better

  /// Null where it is none of these.
  const MetricValue* of(const std::vector<MetricValue>& values) const;
  bool better(double value, double than, double by = 0.0) const {
    return (rises ? value - than : than - value) > by;
  }
};
/// Its keys `metric` and `mode` of a section. `tested`: what tests come to.
Decisive read_decisive(ConfigSection& section, const std::vector<MetricValue>& tested);

/// Section `early_stopping`: a run ends once its tests no longer become better.
struct EarlyStoppingSettings : Decisive {
  std::int64_t patience = 1;  ///< tests in a row that are no better than the best before them
  double min_delta = 0.0;     ///< what a better one is better by, at least: more than this
};

/// Counts the tests since the best one; a function of their values, so all ranks count alike.
class EarlyStopping {
 public:
  explicit EarlyStopping(const EarlyStoppingSettings& settings) : settings_(settings) {}
  /// Looks at a test after so many steps. A value that is not finite is no better. True: the run
  /// ends here.
  bool ends(const std::vector<MetricValue>& values, std::int64_t step);
  bool ended() const { return waited_ >= settings_.patience; }
  /// Whether the next test may be the last.
  bool may_end() const { return waited_ + 1 >= settings_.patience; }

  /// For a checkpoint, and from one: Error(kUsage) through `source` where that is damaged. Another
  /// metric than then begins anew.
  std::string text() const;
  void read(const std::string& text, const std::string& source);

  const EarlyStoppingSettings& settings() const { return settings_; }
  double best() const { return best_; }
  std::int64_t best_step() const { return best_step_; }

 private:
  EarlyStoppingSettings settings_;
  std::int64_t waited_ = 0, best_step_ = -1;  ///< -1: no test yet
  double best_ = 0.0;
};

/// Reads `early_stopping`, which is off where it is not given. `tested`: what tests come to.
std::optional<EarlyStoppingSettings> read_early_stopping(ConfigSection& root,
                                                         const std::vector<MetricValue>& tested,
                                                         bool has_tests);

}  // namespace starling
