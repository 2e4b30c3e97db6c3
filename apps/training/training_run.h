#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/training/async_sum.h"
#include "apps/training/estimates/token_rates.h"
#include "apps/training/output/metrics.h"
#include "apps/training/output/progress.h"
#include "apps/training/state/checkpoint_writer.h"
#include "apps/training/state/early_stopping.h"
#include "apps/training/trainer.h"
#include "core/core_wait.h"

namespace starling {

/// A run from where the trainer stands to its end: calls its steps, and does what is told of them,
/// in the run's folder: lines of metrics, progress, tests, checkpoints, the summary, and a stop
/// after a signal.
class TrainingRun {
 public:
  /// Key of a checkpoint's metadata: its step's test was given up, and is made up for.
  static constexpr const char* kOwesTest = "owes_test";
  /// Another: what early stopping has counted.
  static constexpr const char* kEarlyStopping = "early_stopping";
  TrainingRun(Trainer& trainer, std::string folder);
  /// Goes on from a checkpoint, which the trainer has read.
  void resume(const SafetensorsFile& state, const std::string& source);
  /// Returns kOk, or kStopped after a signal and a checkpoint. Collective.
  ExitCode run();

 private:
  ExitCode run_steps();
  void post_metrics();
  void emit_metrics();
  /// Brings losses and flags to the host. Where the device runs behind the host, this waits for it:
  /// its share of the steps' time.
  void catch_up();
  void check_finite();
  [[noreturn]] void report_diverged(std::int64_t loss_step, std::int64_t scale_step) const;
  /// Tests the model. False: given up, as a rank was told to stop.
  bool test(bool last);
  /// Tests before a checkpoint that is due: data that cannot be read end the run, but not without
  /// that checkpoint.
  bool test_before_checkpoint(bool last);
  /// Tells of a test, while the model is the mean; the last one writes it.
  void tell(const EvaluationResult& result, bool last);
  /// `last`: no step follows, so that nothing need be copied.
  void save_checkpoint(bool last);
  /// `checkpoint.best`: the best of the checkpoints that this run goes on from; those after its
  /// step are of a run that is no more.
  void read_best();
  /// Rank 0: what the folder has; a damaged one gets another name, and one line says so.
  std::optional<CheckpointFolder::Best> whole_best() const;
  /// Whether early stopping has ended the run.
  bool ended_early() const { return early_ && early_->ended(); }
  /// Tells so.
  void tell_early_end();
  /// How evaluate.prompt goes on by the model as its tensors stand; empty where there is none.
  std::string sample() const;
  /// Notes whether a test, which tell() has told of, is the best so far, and then writes the first
  /// part of its checkpoint, the mean model.
  void compare_with_best(const EvaluationResult& result);
  /// Writes the rest of the best checkpoint, once the model's tensors are the rank's own again.
  void save_best();
  /// Whether any rank was told to stop. With the same question ranks tell each other whether they
  /// still write a checkpoint.
  bool stop_agreed();
  void write_summary();
  void add_seconds(double seconds);
  std::int64_t step() const { return trainer_.steps_done(); }
  LossRecord& losses() { return trainer_.losses(); }
  std::int64_t scale_diverged_step() {
    return trainer_.loss_scaler() ? trainer_.loss_scaler()->diverged_step() : -1;
  }

  Trainer& trainer_;
  const TrainConfig& config_;
  Backend& backend_;
  Transport& transport_;
  std::string folder_;
  TokenRates token_rates_;
  CoreWait core_wait_;
  bool owes_test_ = false;  ///< of the step that has been done
  std::optional<EarlyStopping> early_;

  /// Seconds since the last line of metrics
  double line_seconds_ = 0.0, wait_seconds_ = 0.0, data_wait_seconds_ = 0.0;
  std::int64_t line_steps_ = 0;
  AsyncSum metrics_sum_, stop_sum_;
  CheckpointWriter checkpoints_;
  std::int64_t asked_part_ = -1;  ///< of the checkpoint, in which stop_sum_ was started
  MetricsLine posted_;
  std::int64_t posted_steps_ = 0;
  std::optional<EvaluationResult> result_;
  std::optional<CheckpointFolder::Best> best_;
  bool is_best_ = false;  ///< the newest test

  std::unique_ptr<MetricsWriter> writer_;  ///< on rank 0
  std::unique_ptr<Progress> progress_;     ///< on rank 0
};

}  // namespace starling
