#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/data/loader.h"
#include "apps/output/checkpoint.h"
#include "apps/output/metrics.h"
#include "apps/output/progress.h"
#include "apps/trainer/agreement.h"
#include "apps/trainer/evaluation.h"
#include "apps/trainer/loss_record.h"
#include "apps/trainer/loss_scaler.h"
#include "apps/trainer/shape_trace.h"
#include "apps/trainer/step_graphs.h"
#include "apps/trainer/train_config.h"
#include "apps/trainer/training_state.h"

namespace starling {

/// Where a run's files go and how it starts.
struct RunFolder {
  std::string path;
  bool resume = false;
  std::int64_t resume_step = 0;  ///< of the checkpoint, where there is one
};

/// Trains a model on this rank: owns buckets, algorithm and loader, and runs the steps. The data set must be open.
class Trainer {
 public:
  Trainer(TrainConfig& config, const RunSite& site, const ShapeTrace& trace, Backend& backend, Transport& transport);
  ~Trainer();

  /// Initial values: from the seed or from `init`, rank 0's on every rank.
  void initialise();
  /// Continues from this rank's file of a checkpoint.
  void resume(const SafetensorsFile& file, const std::string& source);

  /// Runs to the end, writing the folder's files. Returns kOk, or kStopped after a signal and a checkpoint.
  ExitCode run(const RunFolder& folder);

  /// One update: `accumulate` micro-batches forward and backward, exchanges and updates as the algorithm wants.
  void step();
  /// fp16's loss scale and the optimizer's s for the next step; null otherwise.
  LossScaler* loss_scaler() { return scaler_.get(); }
  const StepGraphs& graphs() const { return graphs_; }
  /// This rank's part of a checkpoint. No exchange may be in flight.
  SafetensorsFile state();
  /// Waits for the exchanges in flight; what they brought is kept for the next step.
  void finish() { algorithm_->finish(); }

 private:
  /// One micro-batch's work on the device, from its images to the loss that it returns. Of `info` it fills in fp16's numbers.
  Tensor forward_backward(const MicroBatch& micro, StepInfo& info);
  /// Waits for what the device says of the step before.
  void settle_scale(StepInfo& info);
  std::uint64_t dropout_counter(const MicroBatch& micro) const;
  void post_metrics();
  void emit_metrics();
  /// Brings losses and flags to the host. Where the device runs behind the host, this waits for it: its share of the steps' time.
  void catch_up();
  void check_finite();
  [[noreturn]] void report_diverged(std::int64_t loss_step, std::int64_t scale_step) const;
  std::int64_t scale_diverged_step() const { return scaler_ ? scaler_->diverged_step() : -1; }
  void step_or_explain_memory();
  void test(bool last);
  void save_checkpoint(bool last);
  bool stop_agreed();
  void write_summary();
  std::int64_t total_steps() const { return length_.total_steps; }
  double epoch() const;

  TrainConfig& config_;
  RunSite site_;
  RunLength length_;
  Backend& backend_;
  Transport& transport_;
  BucketPlan plan_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<Schedule> schedule_;
  std::unique_ptr<Algorithm> algorithm_;
  std::unique_ptr<BucketScheduler> scheduler_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<EvaluationLoader> evaluation_loader_;
  Tape tape_;
  StepGraphs graphs_;
  LossRecord losses_;
  std::unique_ptr<LossScaler> scaler_;  ///< in fp16
  std::size_t activation_bytes_, resident_bytes_ = 0;

  std::int64_t step_ = 0;  ///< updates done
  std::int64_t loader_epoch_ = 0;
  double lr_ = 0.0;  ///< of the last update
  double train_seconds_ = 0.0, line_seconds_ = 0.0;
  std::int64_t line_steps_ = 0;
  double wait_seconds_ = 0.0;

  AsyncSum metrics_sum_, stop_sum_;
  MetricsLine posted_;
  std::int64_t posted_steps_ = 0;

  // On rank 0, while run() runs.
  std::string folder_;
  std::unique_ptr<MetricsWriter> writer_;
  std::unique_ptr<Progress> progress_;
  std::optional<EvaluationResult> result_;
  double images_per_second_ = 0.0;
};

}  // namespace starling
