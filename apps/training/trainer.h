#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/data/loader.h"
#include "apps/training/config/train_config.h"
#include "apps/training/device/step_graphs.h"
#include "apps/training/evaluation.h"
#include "apps/training/norm_sums.h"
#include "apps/training/state/lookahead.h"
#include "apps/training/state/loss_record.h"
#include "apps/training/state/loss_scaler.h"
#include "apps/training/state/model_average.h"
#include "apps/training/state/training_state.h"
#include "comm/scheduler.h"

// What lives in trainer: the library that trains; the programs in apps/ are command lines around
// it. run: from arguments to an exit code; trainer: a step; training_run: what is told of steps;
// evaluation. Its rooms, and which uses which: docs/architecture.md.

namespace starling {

/// Trains a model on this rank, step by step: owns buckets, algorithm and loader. The data set must
/// be open. What is told of it, and where to, is TrainingRun's (training_run.h).
class Trainer {
 public:
  Trainer(TrainConfig& config, const RankLayout& site, const ShapeTrace& trace, Backend& backend,
          Transport& transport);
  ~Trainer();

  /// Initial values: from the seed or from `init`, rank 0's on every rank.
  void initialise();
  /// Continues from this rank's file of a checkpoint, or from all ranks' mean (elastic.h).
  void resume(const SafetensorsFile& file, const std::string& source);

  /// One update: `accumulate` micro-batches forward and backward, exchanges and updates as the
  /// algorithm wants. Out of memory: the error says which batch size would fit.
  void step();
  /// Waits for the exchanges in flight; what they brought is kept for the next step.
  void finish() {
    named("algorithm", "finish()", [&] { algorithm_->finish(); });
  }
  /// The algorithm that steps are taken with now, and its topology's name.
  const AlgorithmPlan& algorithm() const { return part(part_).algorithm; }
  /// The algorithm's own count of steps.
  std::int64_t algorithm_steps() const { return step_ - part(part_).first; }
  /// Work to do while the model's tensors are those that are tested; empty functions do nothing.
  struct TestedModels {
    /// With the mean of the ranks, and all that was measured
    std::function<void(const EvaluationResult&)> mean;
    /// The moving average, before that; only with `ema`
    std::function<void()> average;
    /// Asked at each batch: whether to give the test up (EvaluationResult::stopped)
    std::function<bool()> stop;
  };
  /// Tests the mean model, and before it, with `ema`, the ranks' mean of their moving averages,
  /// whose values are among the result's as "ema_<name>". Collective, with no exchange in flight.
  EvaluationResult test(const TestedModels& meanwhile);
  EvaluationResult test(const std::function<void(const EvaluationResult&)>& meanwhile) {
    return test(TestedModels{meanwhile, {}, {}});
  }
  /// Checks at the end of a run: Error(kUsage) where a bucket is as it was at the beginning, though
  /// it has gradients, a rate, and had steps enough.
  void check_updated() const;
  /// This rank's part of a checkpoint. No exchange may be in flight. `used`: an earlier one, whose
  /// memory is used again. `copies`: see save_state().
  SafetensorsFile state(SafetensorsFile used = {}, bool copies = true);

  std::int64_t steps_done() const { return step_; }
  double epoch() const { return length_.epochs_at(step_); }
  double lr() const { return lr_; }  ///< of the last update
  const RunLength& length() const { return length_; }
  /// ShapeTrace::target_flops
  double target_flops() const { return target_flops_; }
  /// The seconds of training so far, earlier runs' included; whoever calls step() adds what it
  /// took.
  double seconds() const { return seconds_; }
  void add_seconds(double seconds) { seconds_ += seconds; }
  /// Bytes that all ranks have sent each other so far, see step_traffic(); none where an algorithm
  /// does not say.
  std::optional<double> bytes_sent() const;
  /// Seconds that the host has waited for exchanges since the last question.
  double take_wait_seconds() {
    return algorithm_->take_wait_seconds() + (norm_sums_ ? norm_sums_->take_wait_seconds() : 0.0);
  }
  double take_data_wait_seconds() { return loader_->take_wait_seconds(); }
  LossRecord& losses() { return losses_; }
  /// Of the last step's gradients, before clipping (GradientRecord); none where it is not known.
  std::optional<double> gradient_norm() const;
  /// fp16's loss scale and the optimizer's s for the next step; null otherwise.
  LossScaler* loss_scaler() { return scaler_.get(); }
  const StepGraphs& graphs() const { return graphs_; }
  /// How exchanges go: "direct", "peer memory + NCCL …", "mpi".
  std::string carried_by() const { return mixer_->name(); }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  Mixer& mixer() { return *mixer_; }
  TrainConfig& config() { return config_; }
  Backend& backend() { return backend_; }
  Transport& transport() { return transport_; }

 private:
  /// A stretch of the run with one algorithm: 0 is the config's own, the others are its phases.
  struct Part {
    const AlgorithmPlan& algorithm;
    const Topology* topology;
    std::int64_t began;  ///< its first step
    /// The step that is the algorithm's own step 0: a later one where it began anew with other
    /// ranks
    std::int64_t first;
  };
  Part part(std::size_t k) const;
  /// The part that step t belongs to.
  std::size_t part_of(std::int64_t t) const;
  /// Makes the algorithm of a part, whose step 0 is the run's step `first`.
  void open_part(std::size_t k);
  /// Drops the algorithm and what it kept; each bucket's parameters lie in these tensors from now
  /// on.
  void close_part(const std::vector<Tensor>& parameters);
  /// Collective: ends the part that goes on, makes the ranks one, and opens the next.
  void switch_to(std::size_t k);
  /// Key of a checkpoint's metadata: threads that a rank computed with on a CPU.
  static constexpr const char* kThreads = "threads";
  /// A rate that jumps, and other threads, since the checkpoint was made.
  void tell_changes(const SafetensorsFile& file, const std::string& source) const;
  std::string threads_text() const;  ///< "" on a GPU
  void issue_step();
  double rate(std::int64_t step) const;
  /// One micro-batch's work on the device, from its samples to the loss that it returns. Of `info`
  /// it fills in fp16's numbers.
  Tensor forward_backward(const MicroBatch& micro, StepInfo& info);
  /// Waits for what the device says of the step before.
  void settle_scale(StepInfo& info);
  std::uint64_t dropout_counter(const MicroBatch& micro) const;
  /// `check_numbers`: looks at what the pass is about to read, and has it tell what it makes.
  void watch_numbers(const Batch& batch, Pass& pass) const;
  /// Notes what check_updated() compares with.
  void note_beginning();
  /// `continues`: with what is left of an epoch that other ranks began.
  LoaderSettings loader_settings(bool continues = true) const;
  /// Makes the loader for the size that images have in an epoch, where it has another: it is to be
  /// started then.
  bool size_loader(std::int64_t epoch);
  /// Measures norms anew for sync.batch_norm, before a test of the model that `shown` shows.
  void recalibrate_norms(MeanModelScope& shown);

  TrainConfig& config_;
  RunLength length_;
  Backend& backend_;
  Transport& transport_;
  BucketPlan plan_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<Schedule> schedule_;
  std::size_t part_ = 0;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Algorithm> algorithm_;
  std::unique_ptr<BucketScheduler> scheduler_;
  std::shared_ptr<const LossShares> loss_shares_;  ///< where targets are ignored
  std::vector<float> complexities_;  ///< of training samples, where the sampler goes by them
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<EvaluationLoader> evaluation_loader_;
  /// Loader of batches that statistics are measured on; made at the first test
  std::unique_ptr<Loader> norm_loader_;
  std::unique_ptr<ModelAverage> average_;  ///< `ema`
  std::unique_ptr<Lookahead> lookahead_;
  Tape tape_;
  StepGraphs graphs_;
  LossRecord losses_;
  GradientRecord gradients_;
  std::unique_ptr<NormSums> norm_sums_;  ///< sync.batch_norm sync, with several ranks
  std::unique_ptr<LossScaler> scaler_;   ///< in fp16
  std::size_t activation_bytes_, resident_bytes_ = 0;
  double target_flops_;
  std::vector<std::optional<double>> part_traffic_;  ///< step_traffic() of each part

  std::int64_t first_step_ = 0;         ///< of this process
  std::vector<std::string> beginning_;  ///< checksums of the buckets' parameters then

  std::int64_t step_ = 0;  ///< updates done
  /// image_side_: the loader's, 0 where images have one size
  std::int64_t loader_epoch_ = 0, image_side_ = 0;
  double lr_ = 0.0, largest_lr_ = 0.0, seconds_ = 0.0;
};

}  // namespace starling
