#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/output/event_file.h"
#include "apps/training/output/output_file.h"
#include "apps/training/tasks/metric.h"

namespace starling {

/// What a run reports.
struct OutputSettings {
  bool tensorboard = true;
  std::string prometheus;       ///< file of the newest numbers; empty: none
  std::string trace;            ///< file of the timeline; empty: none
  std::string flight_recorder;  ///< on, end or off
  std::int64_t log_every = 10;  ///< steps between lines of metrics.jsonl
};

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

/// The newest numbers of a run for Prometheus' node exporter (its textfile collector): a gauge
/// `starling_<field>` for each number of metrics.jsonl, with the run's folder as label `run`; times
/// are in seconds, and what ranks have each also has a label `rank`. A name has `_` for what
/// Prometheus cannot read, and the field as label `field`. The file is whole at any moment.
class PrometheusFile {
 public:
  /// What each such file begins with.
  static constexpr const char* kBegin = "# TYPE starling_";
  PrometheusFile(std::string path, const std::string& run);
  /// Takes a line's numbers over and writes the file; a failure is told once, and tried again.
  void take(const nlohmann::ordered_json& line);

 private:
  std::string path_, label_;
  std::map<std::string, std::map<std::string, std::string>> gauges_;  ///< by name, then by labels
  bool failed_ = false;
};

/// Writes metrics.jsonl and, if asked, TensorBoard's event file and Prometheus' (rank 0 only). On
/// resume lines after `resume_step` are cut off, and the file is continued. Every line is flushed.
class MetricsWriter {
 public:
  MetricsWriter(const std::string& folder, const OutputSettings& settings,
                std::int64_t resume_step);
  void write(const MetricsLine& line);
  /// The step of the last line with a loss that was there before; 0: there was none.
  std::int64_t last_loss() const { return last_loss_; }

 private:
  std::int64_t last_loss_;
  OutputFile lines_;
  std::optional<EventFile> events_;
  std::optional<PrometheusFile> prometheus_;
};

}  // namespace starling
