#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/tasks/metric.h"
#include "core/config.h"

namespace starling {

/// The value by which tests are compared.
struct Decisive {
  std::string metric;  ///< "test_accuracy"
  bool rises = false;  ///< higher is better

  /// Null if it is not among the values.
  const MetricValue* of(const std::vector<MetricValue>& values) const;
  bool better(double value, double than, double by = 0.0) const {
    return (rises ? value - than : than - value) > by;
  }
};
/// Reads the keys `metric` and `mode`. `tested`: the values of tests.
Decisive read_decisive(ConfigSection& section, const std::vector<MetricValue>& tested);

/// Section `early_stopping`: ends a run when its tests do not improve any more.
struct EarlyStoppingSettings : Decisive {
  std::int64_t patience = 1;  ///< consecutive tests without an improvement
  double min_delta = 0.0;     ///< an improvement must exceed this
};

/// Counts the tests since the best one. Depends on their values only, and so is equal on all ranks.
class EarlyStopping {
 public:
  explicit EarlyStopping(const EarlyStoppingSettings& settings) : settings_(settings) {}
  /// Adds a test after `step` steps; not finite is not better. Returns whether to end the run.
  bool ends(const std::vector<MetricValue>& values, std::int64_t step);
  bool ended() const { return waited_ >= settings_.patience; }
  /// Whether the next test may be the last.
  bool may_end() const { return waited_ + 1 >= settings_.patience; }

  /// The state as text. Error(kUsage) with `source` if damaged. Starts over for another metric.
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

/// Reads `early_stopping`, which is off by default. `tested`: the values of tests.
std::optional<EarlyStoppingSettings> read_early_stopping(ConfigSection& root,
                                                         const std::vector<MetricValue>& tested,
                                                         bool has_tests);

}  // namespace starling
