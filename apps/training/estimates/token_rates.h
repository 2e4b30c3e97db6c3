#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/training/config/train_config.h"
#include "apps/training/output/metrics.h"
#include "core/backend.h"

namespace starling {

/// What matrix products reach on a device, and what says so.
struct ProductPeak {
  double flops_per_second = 0.0;
  std::string of;
  double core_wait = 0.0;  ///< CoreWait::share() of the measurement
};

/// Rates of a run whose task counts targets: tokens a second, and the model FLOP utilization, its
/// products' arithmetic (ShapeTrace::target_flops) over the peak of all ranks.
class TokenRates {
 public:
  TokenRates(const TrainConfig& config, double target_flops, Backend& backend, int ranks);
  /// Where others kept the machine busy while the peak was measured: what that means. Else empty.
  std::string disturbance() const;
  void add_to(MetricsLine& line) const;
  void add_to(nlohmann::json& summary) const;

 private:
  std::optional<double> utilization(double tokens_per_second) const;

  double tokens_ = 0.0;  ///< of a sample; 0: none are counted
  double flops_ = 0.0;   ///< of a token; 0: it has no products
  int ranks_;
  ProductPeak peak_;
};

/// Lines of --dry-run where targets are counted: the arithmetic of a token, and on a CPU how many a
/// second are to be expected of a rank, by what this host's products and copies reach now. GPUs are
/// not asked. `parameters`: of all buckets. `step_seconds`: is set to what is expected of a step.
std::string token_text(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace,
                       double parameters, double& step_seconds);

}  // namespace starling
