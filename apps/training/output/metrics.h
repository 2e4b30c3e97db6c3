#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/output/output_settings.h"
#include "apps/training/tasks/metric.h"

namespace starling {

/// A line of metrics.jsonl; fields that are not set are left out.
struct MetricsLine {
  std::int64_t step = 0;
  double epoch = 0.0;
  std::optional<double> loss, lr, samples_per_second, step_ms, wait_ms, data_wait_ms;
  std::optional<double> grad_norm, grad_norm_max;  ///< mean and largest of the ranks'
  std::optional<double> tokens_per_second, model_flop_utilization;  ///< of a language model
  /// Rank that worked longest, of several; waits for others not counted
  std::optional<std::int64_t> slowest_rank;
  std::optional<double> slowest_rank_ms, fastest_rank_ms;
  std::optional<double> core_wait;   ///< CoreWait::share() since the last line, of rank 0
  std::optional<double> bytes_sent;  ///< by all ranks, since the run's first step
  std::vector<double> rank_wait_ms;  ///< wait_ms of each rank
  std::vector<int> participants;     ///< ranks that took part in the outer step
  std::vector<MetricValue> test;     ///< an evaluation's
  std::string sample;                ///< how evaluate.prompt goes on, with it; empty: none
  std::optional<double> consensus_distance;
  std::vector<double> bucket_consensus;  ///< per bucket, with an evaluation
};

/// Writes metrics.jsonl and, if asked, TensorBoard's event file and Prometheus' (rank 0 only). On
/// resume lines after `resume_step` are cut off first, and the file is continued. Every line is
/// flushed. A write error is Error(kOutput) with file and remedy.
class MetricsWriter {
 public:
  MetricsWriter(const std::string& folder, const OutputSettings& settings,
                std::int64_t resume_step);
  ~MetricsWriter();
  void write(const MetricsLine& line);
  /// The step of the last line with a loss that was there before; 0: there was none.
  std::int64_t last_loss() const { return last_loss_; }

 private:
  std::int64_t last_loss_ = 0;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace starling
