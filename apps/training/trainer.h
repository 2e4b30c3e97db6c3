#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/loader.h"
#include "apps/training/async_sum.h"
#include "apps/training/config/train_config.h"
#include "apps/training/device/step_graphs.h"
#include "apps/training/evaluation.h"
#include "apps/training/state/loss_scaler.h"
#include "apps/training/state/model_copy.h"
#include "apps/training/state/training_state.h"
#include "comm/replica.h"
#include "comm/scheduler.h"
#include "core/backend.h"
#include "core/operations/pointwise.h"

// This folder: training as a library. run: from arguments to an exit status; trainer: steps;
// training_run: a run's metrics, tests and checkpoints. See docs/architecture.md.

namespace starling {

/// Losses since the last line of metrics. They stay on the device until drain(), so that no step
/// waits for them.
class LossRecord {
 public:
  LossRecord(Backend& backend, DType dtype, std::int64_t capacity)
      : ring_(backend, Shape{capacity}, dtype), host_(static_cast<std::size_t>(capacity)) {}

  /// Adds a micro-batch's share (a scalar on the device) to the loss of the `step`th step.
  void add(const Tensor& loss, std::int64_t step, bool first_micro_batch) {
    if (first_micro_batch && used_ == ring_.elements()) drain();
    if (first_micro_batch) {
      if (used_ == 0) first_step_ = step;
      ++used_;
    }
    WeightedSum sum;
    sum.in[0] = loss;
    sum.weight[0] = 1.0;
    sum.terms = 1;
    sum.out = ring_.slice(used_ - 1, Shape{1});
    sum.accumulate = !first_micro_batch;
    ring_.backend().weighted_sum(sum);
  }

  /// Brings what the device holds to the host.
  void drain() {
    if (used_ == 0) return;
    const Tensor used = ring_.slice(0, Shape{used_});
    std::vector<float> narrow(ring_.dtype() == DType::kFloat32 ? static_cast<std::size_t>(used_)
                                                               : 0);
    ring_.backend().copy_to_host(used,
                                 narrow.empty() ? static_cast<void*>(host_.data()) : narrow.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(used_); ++i) {
      const double loss = narrow.empty() ? host_[i] : static_cast<double>(narrow[i]);
      if (!std::isfinite(loss) && diverged_step_ < 0)
        diverged_step_ = first_step_ + static_cast<std::int64_t>(i) + 1;
      sum_ += loss;
      ++count_;
    }
    used_ = 0;
  }

  double sum() const { return sum_; }
  std::int64_t count() const { return count_; }
  /// The first step (from 1) whose loss was not finite; -1 if none was.
  std::int64_t diverged_step() const { return diverged_step_; }
  void reset(double sum = 0.0, std::int64_t count = 0) {
    sum_ = sum;
    count_ = count;
  }

 private:
  Tensor ring_;
  std::vector<double> host_;
  std::int64_t used_ = 0, first_step_ = 0, count_ = 0, diverged_step_ = -1;
  double sum_ = 0.0;
};

/// Trains a model on this rank, step by step. The data set must be open. Output is TrainingRun's.
class Trainer {
 public:
  /// `in_memory`: the state that resume() will get, if it is of handover_state(): buckets are made
  /// of its tensors where these lie as theirs do. Null: all get new memory.
  Trainer(TrainConfig& config, const RankLayout& site, const ShapeTrace& trace, Backend& backend,
          Transport& transport, const SafetensorsFile* in_memory = nullptr);
  ~Trainer();

  /// Sets initial values from the seed or from `init`; all ranks get rank 0's.
  void initialise();
  /// Continues from a checkpoint's state. `after_loss`: Algorithm::resume_after_loss().
  void resume(const SafetensorsFile& file, const std::string& source, bool after_loss = false);

  /// One update: the passes of `accumulate` micro-batches, and the algorithm's exchanges and
  /// updates. An out-of-memory error says which batch size would fit. Returns false for a step that
  /// this rank skips, because the others have already passed it (AlgorithmSteps::leaves_out).
  bool step();
  /// Waits for exchanges in flight; their results are kept for the next step.
  void finish() {
    named("algorithm", "finish()", [&] { algorithm_->finish(); });
  }
  /// The current algorithm, and its topology's name.
  const AlgorithmPlan& algorithm() const { return part(part_).algorithm; }
  /// What ranks have agreed on since the last call.
  std::vector<Algorithm::Meeting> take_meetings() { return std::exchange(meetings_, {}); }
  void ask_to_stop() { algorithm_->ask_to_stop(); }
  void ask_to_join() { algorithm_->ask_to_join(); }
  /// Steps since the current algorithm began.
  std::int64_t algorithm_steps() const { return step_ - part(part_).first; }
  /// Whether the next steps are left out, since the algorithm has taken an outer step after them.
  bool is_behind() const { return steps_to_skip_ > 0; }
  /// Called while the model's tensors are those being tested. Null functions are skipped.
  struct TestedModels {
    /// With the mean of the ranks, and the result
    std::function<void(const EvaluationResult&)> mean;
    /// With the moving average, before that; only with `ema`
    std::function<void()> average;
    /// Called for each batch: whether to abort the test (EvaluationResult::stopped)
    std::function<bool()> stop;
  };
  /// Tests the mean model. With `ema`, first tests the mean of the ranks' moving averages, whose
  /// values are in the result as "ema_<name>". Collective, with no exchange in flight.
  EvaluationResult test(const TestedModels& meanwhile);
  EvaluationResult test(const std::function<void(const EvaluationResult&)>& meanwhile) {
    return test(TestedModels{meanwhile, {}, {}});
  }
  /// At the end: Error(kUsage) if a bucket has not changed, although it has gradients and a rate.
  void check_updated() const;
  /// This rank's part of a checkpoint. No exchange may be in flight. `used`: an earlier result,
  /// whose memory is reused. Without `copies` tensors are read when the file is written.
  SafetensorsFile state(SafetensorsFile used = {}, bool copies = true);
  /// The state in memory to continue from with another set of ranks (joining.h). Also after a step
  /// that failed half-way, which is then repeated; empty if it failed between two algorithms. It
  /// refers to a CPU's tensors (ReferredTensor), which the next step changes. Those that a
  /// replica's ranks share are in its first rank's state alone; they are read later, when none of
  /// these ranks is in a step any more.
  std::optional<SafetensorsFile> handover_state();

  /// Its metadata: the step of Algorithm::met(); ranks are bitwise equal; this is the algorithm's
  /// first step.
  static constexpr const char *kLastSynchronised = "met", *kRanksEqual = "alike",
                              *kAtFirstStep = "begins";

  std::int64_t steps_done() const { return step_; }
  double epoch() const { return length_.epochs_at(step_); }
  double lr() const { return lr_; }  ///< of the last update
  const RunLength& length() const { return length_; }
  /// ShapeTrace::target_flops
  double target_flops() const { return target_flops_; }
  /// Of training so far, in earlier runs too. The caller of step() adds its duration.
  double seconds() const { return seconds_; }
  void add_seconds(double seconds) { seconds_ += seconds; }
  /// Bytes sent by all ranks so far, see step_traffic(); empty if an algorithm does not provide it.
  std::optional<double> bytes_sent() const;
  /// Seconds that the host has waited for exchanges since the last call.
  double take_wait_seconds() {
    return algorithm_->take_wait_seconds() + (norm_sums_ ? norm_sums_->take_wait_seconds() : 0.0);
  }
  double take_data_wait_seconds() { return loader_->take_wait_seconds(); }
  LossRecord& losses() { return losses_; }
  /// Of the last step's gradients, before clipping (GradientRecord); empty if unknown.
  std::optional<double> gradient_norm() const;
  /// fp16's loss scale and the optimizer's s for the next step; null for other formats.
  LossScaler* loss_scaler() { return scaler_.get(); }
  const StepGraphs& graphs() const { return graphs_; }
  /// The transport's name: "direct", "peer memory + NCCL …", "mpi".
  std::string exchange_name() const { return mixer_->name(); }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  Mixer& mixer() { return *mixer_; }
  TrainConfig& config() { return config_; }
  Backend& backend() { return backend_; }
  Transport& transport() { return transport_; }
  /// Null without sync.replica.
  Replica* replica() const { return replica_.get(); }

 private:
  /// A part of the run with one algorithm: SyncSettings::phase().
  struct Part {
    const AlgorithmPlan& algorithm;
    const Topology* topology;
    std::int64_t began;  ///< its first step
    /// The algorithm's step 0: later than `began` if it was restarted with other ranks
    std::int64_t first;
  };
  Part part(std::size_t k) const;
  /// A tensor of in_memory_, if it is this backend's and nothing changes it before the next step.
  Tensor find_in_memory(const Bucket& bucket, const std::string& prefix, std::int64_t elements,
                        DType dtype) const;
  /// Index of the part with step t.
  std::size_t part_of(std::int64_t t) const;
  /// Makes the algorithm of a part, whose step 0 is the run's step `first`.
  void open_part(std::size_t k);
  /// Destroys the algorithm and its states, and moves each bucket's parameters to these tensors.
  void close_part(const std::vector<Tensor>& parameters);
  /// Ends the current part, replaces parameters by their mean, and opens part k. Collective.
  void switch_to(std::size_t k);
  /// Key in a checkpoint's metadata: compute threads of a rank on a CPU.
  static constexpr const char* kThreads = "threads";
  /// Warns if the learning rate jumps, or the number of threads has changed, since the checkpoint.
  void warn_of_changes(const SafetensorsFile& file, const std::string& source) const;
  std::string threads_text() const;  ///< "" on a GPU
  SafetensorsFile make_state(SafetensorsFile used, PutTensor put, PutTensor put_copies);
  /// Replaces tensors that the replica's ranks share by references to its first rank's file.
  void refer_to_first_rank(int first, SafetensorsFile& file) const;
  void issue_step();
  double rate(std::int64_t step) const;
  /// A micro-batch's forward and backward pass. Returns the loss; sets fp16's values in `info`.
  Tensor forward_backward(const MicroBatch& micro, StepInfo& info);
  /// Waits for the result of the preceding step's overflow check.
  void settle_scale(StepInfo& info);
  std::uint64_t dropout_counter(const MicroBatch& micro) const;
  /// `check_numbers`: looks for numbers that are not finite in a pass's inputs and results.
  void watch_numbers(const Batch& batch, Pass& pass) const;
  /// Saves what check_updated() compares with.
  void record_initial_checksums();
  /// `continues`: including the rest of an epoch that another number of ranks began.
  LoaderSettings loader_settings(bool continues = true) const;
  /// Replaces the loader if images have another size in this epoch; then it must be started.
  bool size_loader(std::int64_t epoch);
  /// sync.batch_norm: recomputes statistics of the model in `shown`, before a test.
  void recalibrate_norms(MeanModelScope& shown);

  /// With `lora`, on CPUs: gives memory that a host's ranks share; empty elsewhere. Collective.
  std::function<Tensor(const Shape&, DType)> base_memory();
  /// Rank 0 reads `init`. Collective, as the next two.
  void load_initial();
  /// Broadcasts rank 0's values. A rank without `store` only takes part in the collective call.
  void broadcast_from_first(const Tensor& tensor, bool store = true);
  /// The same of frozen parameters, of which a host may have one copy.
  void share_frozen();
  /// Updates what layers compute with (low-precision copies) after parameters were set. Collective.
  void refresh_low();
  /// Error(kUsage) where a checkpoint is of another base than `init`.
  void check_same_base(const SafetensorsFile& file, const std::string& source) const;

  /// A barrier of the replica's ranks, if there are several.
  void replica_barrier() {
    if (replica_) replica_->barrier({.step = step_});
  }
  /// The transport that algorithms see: between all ranks or, with replicas, between those at the
  /// same place of each.
  Transport& algorithm_transport() const { return replica_ ? replica_->between() : transport_; }
  int replica_size() const { return replica_ ? replica_->size() : 1; }

  TrainConfig& config_;
  RunLength length_;
  Backend& backend_;
  Transport& transport_;
  const SafetensorsFile* in_memory_;  ///< until resume() has returned
  std::unique_ptr<Replica> replica_;  ///< with sync.replica
  HostRanks hosts_;                   ///< with base_memory()
  bool shares_base_ = false;          ///< the base lies in it
  BucketPlan plan_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<Schedule> schedule_;
  std::size_t part_ = 0;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Algorithm> algorithm_;
  std::unique_ptr<BucketScheduler> scheduler_;
  std::shared_ptr<const LossShares> loss_shares_;  ///< if targets may be ignored
  std::vector<float> complexities_;  ///< of training samples, if the sampler uses them
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<EvaluationLoader> evaluation_loader_;
  /// For batches to recompute statistics with; made at the first test
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

  std::int64_t first_step_ = 0;                 ///< of this process
  std::vector<std::string> initial_checksums_;  ///< of the buckets' parameters at that step

  std::int64_t step_ = 0;  ///< updates done or skipped
  std::int64_t steps_to_skip_ = 0;
  bool skipped_ = false;  ///< the last step was
  std::vector<Algorithm::Meeting> meetings_;
  /// image_side_: the loader's, 0 where images have one size
  std::int64_t loader_epoch_ = 0, image_side_ = 0;
  double lr_ = 0.0, largest_lr_ = 0.0, seconds_ = 0.0;
};

}  // namespace starling
