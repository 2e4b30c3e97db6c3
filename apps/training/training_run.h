#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "apps/training/async_sum.h"
#include "apps/training/estimates/token_rates.h"
#include "apps/training/output/metrics.h"
#include "apps/training/output/progress.h"
#include "apps/training/state/checkpoint.h"
#include "apps/training/state/early_stopping.h"
#include "apps/training/trainer.h"
#include "comm/membership.h"
#include "core/core_wait.h"

namespace starling {

/// Runs a trainer to the end, and writes the run's folder: metrics, progress, tests, checkpoints
/// and summary. Stops after a signal.
class TrainingRun {
 public:
  /// Key in a checkpoint's metadata: its step's test was aborted, and is to be repeated.
  static constexpr const char* kOwesTest = "owes_test";
  /// Another: the state of early stopping.
  static constexpr const char* kEarlyStopping = "early_stopping";
  /// How ranks join a run; without a membership none do.
  struct Joining {
    Membership* membership;
    /// Why the run cannot continue with one rank more from a step on; empty if it can. On rank 0
    std::function<std::string(std::int64_t step)> why_not;
    /// A checkpoint's copy, whose memory the run with other ranks takes again
    SafetensorsFile* checkpoint_memory;
  };
  TrainingRun(Trainer& trainer, std::string folder, Joining joining = {});
  /// Continues from a checkpoint that the trainer has read. `after_loss`: from handover_state(),
  /// and a line of metrics may have awaited the numbers of the lost rank.
  void resume(const SafetensorsFile& state, const std::string& source, bool after_loss = false);
  /// Returns kOk, or kStopped after a signal and a checkpoint. Collective.
  ExitCode run();
  /// Key in the metadata of a state after the loss of a rank.
  static constexpr const char* kLost = "lost";
  /// Whether run() has ended since a rank is about to join, with Error(kLost) where other ranks may
  /// be at other steps.
  bool joins() const { return joins_; }
  /// This rank's state to continue from with other ranks, after run() has ended so, or has failed
  /// because a rank was lost. Numbers that the lost rank did not add to are counted again.
  std::optional<SafetensorsFile> handover_state(bool lost);

 private:
  ExitCode run_steps();
  void post_metrics() { post_metrics(step()); }
  /// A line of that step.
  void post_metrics(std::int64_t of_step);
  void post_owed_metrics();
  /// Writes the oldest line of those posted; waits for the other ranks' numbers.
  void emit_metrics();
  void emit_all_metrics() {
    while (!posted_.empty()) emit_metrics();
  }
  /// Writes who took part in the outer steps, and notes whether ranks agreed to stop.
  void note_meetings();
  /// Copies losses and flags to the host, which waits for an asynchronous device.
  void catch_up();
  void check_finite();
  [[noreturn]] void report_diverged(std::int64_t loss_step, std::int64_t scale_step) const;
  /// Tests the model. Returns false if aborted, because a rank got a stop signal.
  bool test(bool last);
  /// Tests before a checkpoint that is due. If test data cannot be read, saves it before failing.
  bool test_before_checkpoint(bool last);
  /// Reports a test, while the model is the mean; after the last one writes the model.
  void tell(const EvaluationResult& result, bool last);
  /// `last`: no step follows, so that no copy is needed.
  void save_checkpoint(bool last);
  /// `checkpoint.best`: reads the best checkpoint so far; ignores later ones than this run resumes
  /// from.
  void read_best();
  /// Rank 0: the folder's best checkpoint. A damaged one is renamed, with a warning.
  std::optional<CheckpointFolder::Best> whole_best() const;
  /// Whether early stopping has ended the run.
  bool ended_early() const { return early_ && early_->ended(); }
  /// Reports that.
  void tell_early_end();
  /// The current model's continuation of evaluate.prompt; empty if there is none.
  std::string sample() const;
  /// If a test is the best so far, writes the first part of its checkpoint, the mean model.
  void compare_with_best(const EvaluationResult& result);
  /// Writes the rest of the best checkpoint, when the model's tensors are the rank's own again.
  void save_best();
  /// Whether any rank got a stop signal. The same exchange tells whether ranks are still writing a
  /// checkpoint, and whether a process waits to join.
  bool stop_agreed();
  /// When a process may be let in that waits for it: kNow only in this period of outer steps.
  enum Joins : std::int8_t { kNever, kAtOuterStep, kNow };
  /// On rank 0. Refuses those that cannot be let in; others first get a state.
  Joins asked_to_join();
  /// On rank 0: offers a copy of this rank's state to waiting processes, while training continues;
  /// in one of the steps after the first call, when there is memory for it.
  void offer_state();
  /// Whether this step and an earlier one of the algorithm follow the same outer step.
  bool same_period(std::int64_t algorithm_steps) const;
  /// Notes what ranks have agreed on.
  void note_joins(Joins joins);
  /// Whether a rank is to join after this step.
  bool joins_now() const;
  /// Adds what is the run's own to the trainer's.
  void add_to(SafetensorsFile& state) const;
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
  bool owes_test_ = false;  ///< of the last step
  std::optional<EarlyStopping> early_;

  /// Seconds since the last line of metrics
  double line_seconds_ = 0.0, wait_seconds_ = 0.0, data_wait_seconds_ = 0.0;
  std::int64_t line_steps_ = 0;
  AsyncSum stop_sum_;
  CheckpointWriter checkpoints_;
  std::int64_t asked_part_ = -1;  ///< the checkpoint's part when stop_sum_ was started
  /// A line of metrics that awaits the other ranks' numbers.
  struct PostedLine {
    std::unique_ptr<AsyncSum> sum;
    MetricsLine line;
    double loss_sum;  ///< this rank's
    std::int64_t losses;
  };
  std::deque<PostedLine> posted_;
  std::unique_ptr<AsyncSum> unused_sum_;
  Joining joining_;
  bool join_agreed_ = false;    ///< a process waits, and all ranks know it
  bool joins_at_once_ = false;  ///< it has a state, so that it need not wait for an outer step
  /// Of the algorithm: the step of the question that is under way, and of the state on offer
  std::int64_t asked_step_ = 0, offered_step_ = -1;
  bool fits_ = false;     ///< the run can continue with one rank more
  bool renewed_ = false;  ///< a state was offered again, as an outer step came first
  std::future<std::vector<Tensor>> memory_;  ///< for the next offer
  bool joins_ = false, after_loss_ = false;
  /// At which ranks agreed to stop in a meeting, or that one joins; -1: none
  std::int64_t stop_step_ = -1, join_step_ = -1;
  std::optional<EvaluationResult> result_;
  std::optional<CheckpointFolder::Best> best_;
  bool is_best_ = false;  ///< the newest test

  std::unique_ptr<MetricsWriter> writer_;  ///< on rank 0
  std::unique_ptr<Progress> progress_;     ///< on rank 0
};

}  // namespace starling
