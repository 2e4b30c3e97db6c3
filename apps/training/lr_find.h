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
  double smoothed = 0.0;  ///< exponential moving average of losses, bias-corrected
  double least = 0.0;     ///< minimum of those so far
};
/// Adds a step. Returns false to end the test: the loss is not finite, or four times the minimum.
bool add_range_point(std::vector<RangePoint>& points, double lr, double loss);

/// The result of a range test.
struct RangeFindings {
  /// Loss by rate in at most 200 bins of equal width, smoothed over a fifth of them, without spikes
  std::vector<double> rates, curve;
  /// The rate of the steepest descent over log(rate), before the minimum; none if within the noise
  std::optional<double> steepest;
  double least = 0.0;          ///< the rate of the minimum
  bool still_falling = false;  ///< the minimum is at the end
};
/// Empty for fewer than seven steps.
std::optional<RangeFindings> findings_of(const std::vector<RangePoint>& points);

/// --lr-find: runs some steps of the config with exponentially growing rates. Writes them as CSV,
/// and prints a chart and a suggested rate. Writes nothing else. Collective.
ExitCode find_lr(const TrainOptions& options, TrainConfig& config, const RankLayout& site,
                 Backend& backend, Transport& transport);

}  // namespace starling
