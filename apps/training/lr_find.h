#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/training/config/options.h"
#include "apps/training/config/train_config.h"
#include "comm/transport.h"
#include "core/backend.h"
#include "core/error.h"

namespace starling {

/// A step of a learning-rate range test (Smith 2017, arXiv:1506.01186), over all ranks.
struct RangePoint {
  double lr = 0.0, loss = 0.0;
  double smoothed = 0.0;  ///< exponential mean of the losses so far, without the start's bias
  double least = 0.0;     ///< of those so far
};
/// Adds a step. False: the test ends here, as the loss is no longer finite or four times the least.
bool add_range_point(std::vector<RangePoint>& points, double lr, double loss);

/// What rates the test speaks for.
struct RangeFindings {
  /// Loss over rates in at most 200 stretches of equal length: the mean of the stretches around,
  /// a fifth of all, without spikes
  std::vector<double> rates, curve;
  /// Where that falls fastest over log(rate), up to its least; none where no fall stands out of the
  /// noise
  std::optional<double> steepest;
  double least = 0.0;          ///< where it is least
  bool still_falling = false;  ///< that is at the end
};
/// None of less than seven steps.
std::optional<RangeFindings> findings_of(const std::vector<RangePoint>& points);

/// --lr-find: some steps of the config's run at rates that grow by the same factor each. Writes
/// them as CSV, and prints a chart and a rate; leaves nothing else. Collective.
ExitCode find_lr(const TrainOptions& options, TrainConfig& config, const RankLayout& site,
                 Backend& backend, Transport& transport);

}  // namespace starling
