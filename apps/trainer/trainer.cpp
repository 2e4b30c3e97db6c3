#include "apps/trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "apps/output/signals.h"
#include "apps/output/terminal.h"
#include "apps/trainer/model_file.h"
#include "core/device_trace.h"
#include "core/error.h"
#include "core/log.h"
#include "core/trace.h"
#include "layers/functions.h"

namespace starling {

namespace {

using Clock = std::chrono::steady_clock;

// What every rank adds to a line of metrics; rank i's are at i·kFields.
enum Field : std::size_t { kLossSum, kLossCount, kSeconds, kWait, kDivergedStep, kScaleStep, kFields };

/// Steps between questions whether any rank was told to stop. A question is answered kStopInterval steps later at the latest, so that
/// no step waits for it.
constexpr std::int64_t kStopInterval = 4;
constexpr std::int64_t kLossCapacity = 1024;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

Trainer::Trainer(TrainConfig& config, const RunSite& site, const ShapeTrace& trace, Backend& backend, Transport& transport)
    : config_(config),
      site_(site),
      length_(run_length(config, site)),
      backend_(backend),
      transport_(transport),
      plan_(plan_buckets(trace.ready_order, trace.unused, config.dtype, config.bucket_bytes)),
      tape_(backend),
      graphs_(config, site, backend, transport),
      losses_(backend, config.dtype, std::min(config.log_every, kLossCapacity)),
      scaler_(config.compute == DType::kFloat16 ? std::make_unique<LossScaler>(config.loss_scale) : nullptr),
      activation_bytes_(trace.activation_bytes),
      metrics_sum_(transport, backend, kFields * static_cast<std::size_t>(site.ranks)),
      stop_sum_(transport, backend, 1) {
  agree_on_plan(plan_, config.dtype, transport);
  buckets_ =
      make_buckets(plan_, backend, config.dtype, static_cast<int>(config.rule->state_names().size()), config.decay_all, config.compute);
  config.model->allocate_buffers(backend, config.dtype);
  config.model->allocate_frozen(backend, config.dtype, config.compute);
  const AlgorithmSite algorithm_site{backend,
                                     transport,
                                     *config.rule,
                                     buckets_,
                                     config.topology.get(),
                                     config.clip,
                                     config.in_backward,
                                     config.overlap,
                                     scaler_ != nullptr,
                                     config.bf16_exchange,
                                     graphs_.start_at_begin()};
  algorithm_ = algorithms().make(config.algorithm, "sync.algorithm", algorithm_site);
  scheduler_ = std::make_unique<BucketScheduler>(plan_, buckets_, *algorithm_, config.allow_unused);
  graphs_.attach(*algorithm_, tape_, buckets_);
  schedule_ = config.make_schedule({config.lr, length_.total_steps, static_cast<double>(length_.steps_per_epoch)});
  tape_.set_ready_observer([this](Parameter& parameter) { scheduler_->ready(parameter); });

  LoaderSettings settings;
  settings.seed = config.seed;
  settings.shuffle = config.shuffle;
  settings.crop_padding = config.crop_padding;
  settings.flip = config.flip;
  settings.dirichlet_alpha = config.dirichlet_alpha;
  settings.batch_size = config.batch_size;
  settings.rank = transport.rank();
  settings.ranks = transport.size();
  settings.fixed_place = graphs_.start_at_begin();
  loader_ = std::make_unique<Loader>(*config.dataset, settings, backend, config.compute);
  evaluation_loader_ =
      std::make_unique<EvaluationLoader>(*config.dataset, config.batch_size, transport.rank(), transport.size(), backend, config.compute);
  resident_bytes_ = backend.memory_stats().in_use;
}

Trainer::~Trainer() = default;

void Trainer::initialise() {
  together(transport_, [&] {
    config_.model->initialise(config_.seed);
    if (!config_.init.empty() && transport_.rank() == 0)
      load_model_tensors(read_safetensors(config_.init), config_.init, "", *config_.model);
  });
  const auto share = [&](const Tensor& tensor) {
    std::vector<std::byte> bytes(tensor.bytes());
    if (transport_.rank() == 0) backend_.copy_to_host(tensor, bytes.data());
    transport_.broadcast(bytes.data(), bytes.size(), 0);
    if (transport_.rank() != 0) backend_.copy_from_host(bytes.data(), tensor);
  };
  if (transport_.size() > 1) {
    for (const Bucket& bucket : buckets_) share(bucket.parameters);
    for (const ModelBuffer* buffer : config_.model->buffers()) share(buffer->value);
    for (const Parameter* parameter : config_.model->parameters()) {
      if (!parameter->trainable) share(parameter->value);
    }
  }
  config_.model->refresh_low();
  loader_->start(0, 0);
}

void Trainer::resume(const SafetensorsFile& file, const std::string& source) {
  RunCounters counters;
  together(transport_, [&] { counters = load_state(file, source, *config_.model, buckets_, *config_.rule); });
  config_.model->refresh_low();
  step_ = counters.step;
  if (scaler_ && counters.loss_scale) scaler_->restore(*counters.loss_scale);
  losses_.reset(counters.loss_sum, counters.loss_count);
  train_seconds_ = counters.train_seconds;
  loader_epoch_ = step_ / length_.steps_per_epoch;
  loader_->start(loader_epoch_, step_ % length_.steps_per_epoch * config_.accumulate);
  algorithm_->resume(step_);
}

double Trainer::epoch() const { return static_cast<double>(step_) / static_cast<double>(length_.steps_per_epoch); }

void Trainer::step() {
  const TraceSpan span("step", std::to_string(step_ + 1));
  const std::int64_t epoch_now = step_ / length_.steps_per_epoch;
  if (epoch_now != loader_epoch_) {
    // Micro-batches that do not fill a group at an epoch's end are dropped.
    if (length_.batches_per_epoch % config_.accumulate != 0) loader_->skip_to_epoch(epoch_now);
    loader_epoch_ = epoch_now;
  }
  lr_ = schedule_->lr(step_);
  StepInfo info{.step = step_, .optimizer_step = step_ + 1, .lr = lr_};
  std::optional<ScaleChoices> choices;
  if (scaler_ && graphs_.takes_choices(info)) {
    choices = scaler_->choices();
  } else if (graphs_.start_at_begin()) {
    settle_scale(info);
  }
  const Tensor control = choices ? algorithm_->control() : Tensor();
  for (std::int64_t index = 0; index < config_.accumulate; ++index) {
    const MicroBatch micro{index, index == 0, index + 1 == config_.accumulate};
    loader_->advance();
    const auto work = [&] { return forward_backward(micro, info); };
    losses_.add(graphs_.run(micro, info, dropout_counter(micro), work, choices ? &*choices : nullptr, control), step_, micro.first);
  }
  loader_->upload_ahead();
  ++step_;
  if (scaler_) scaler_->posted(algorithm_->control(), step_);
}

Tensor Trainer::forward_backward(const MicroBatch& micro, StepInfo& info) {
  const Batch& batch = loader_->make();
  Pass pass{.backend = backend_,
            .tape = &tape_,
            .training = true,
            .dropout_key = config_.seed,
            .dropout_counter = dropout_counter(micro),
            .defer_norms = config_.defer_norms};
  // A graph holds one micro-batch and whole exchanges, so these start in the last one.
  if (graphs_.start_at_begin() && micro.last) scheduler_->begin_step(info);
  Variable loss;
  {
    const TraceSpan forward("forward");
    const DeviceSpan device_forward(TraceLane::kDeviceCompute, "forward");
    const Variable logits = config_.model->forward(Variable(batch.images), pass);
    if (micro.first) settle_scale(info);  // as late as can be: the device has the forward pass to do meanwhile
    pass.loss_scale = info.loss_scale;
    loss = functions::cross_entropy(logits, batch.labels, config_.label_smoothing, 1.0 / static_cast<double>(config_.accumulate), pass);
  }
  if (!graphs_.start_at_begin() && micro.first) scheduler_->begin_step(info);
  {
    const TraceSpan backward("backward");
    const DeviceSpan device_backward(TraceLane::kDeviceCompute, "backward");
    const auto run = [&] { tape_.backward(loss, 1.0, !micro.first, micro.last); };
    if (micro.last) {
      scheduler_->backward(run);
    } else {
      run();
    }
  }
  if (micro.last) {
    if (!backend_.capturing()) loader_->upload_ahead();  // before a wait for an exchange
    scheduler_->end_backward();
  }
  return loss.value();
}

void Trainer::settle_scale(StepInfo& info) {
  if (!scaler_) return;
  const LossScaleState& state = scaler_->settle();
  info.optimizer_step = state.optimizer_step;
  info.loss_scale = state.scale;
}

/// Distinct per step, micro-batch and rank; layers count up in the lower bits.
std::uint64_t Trainer::dropout_counter(const MicroBatch& micro) const {
  return static_cast<std::uint64_t>((step_ * config_.accumulate + micro.index) * transport_.size() + transport_.rank()) << 24;
}

void Trainer::catch_up() {
  const auto begin = Clock::now();
  losses_.drain();
  if (scaler_) scaler_->settle();
  const double waited = seconds_since(begin);
  train_seconds_ += waited;
  line_seconds_ += waited;
}

void Trainer::check_finite() {
  catch_up();
  // The first steps of any rank; a step that never was is far in the future.
  constexpr double kNever = 1e18;
  const auto negated = [](std::int64_t step) { return step < 0 ? -kNever : -static_cast<double>(step); };
  double first[2] = {negated(losses_.diverged_step()), negated(scale_diverged_step())};
  if (transport_.size() > 1) transport_.max(first, 2);
  const auto step_of = [](double value) { return value == -kNever ? std::int64_t{-1} : static_cast<std::int64_t>(-value); };
  if (first[0] != -kNever || first[1] != -kNever) report_diverged(step_of(first[0]), step_of(first[1]));
}

void Trainer::report_diverged(std::int64_t loss_step, std::int64_t scale_step) const {
  if (loss_step >= 0) {
    throw AgreedError(
        ExitCode::kDiverged, "trainer",
        fmt::format(
            "training diverged: the loss of step {} is not a finite number; use a smaller learning rate, a longer warm-up or clip_norm",
            loss_step));
  }
  throw AgreedError(ExitCode::kDiverged, "trainer",
                    fmt::format("training diverged: the gradients of step {} and of those before it overflow fp16 even with a loss scale "
                                "of {:.3g}; use a smaller learning rate, clip_norm, or bf16",
                                scale_step, config_.loss_scale.least));
}

void Trainer::post_metrics() {
  if (metrics_sum_.pending()) emit_metrics();
  catch_up();
  const auto ranks = static_cast<std::size_t>(transport_.size());
  std::vector<double> values(kFields * ranks, 0.0);
  double* mine = values.data() + kFields * static_cast<std::size_t>(transport_.rank());
  mine[kLossSum] = std::isfinite(losses_.sum()) ? losses_.sum() : 0.0;
  mine[kLossCount] = static_cast<double>(losses_.count());
  mine[kSeconds] = line_seconds_;
  mine[kWait] = wait_seconds_;
  mine[kDivergedStep] = static_cast<double>(losses_.diverged_step());
  mine[kScaleStep] = static_cast<double>(scale_diverged_step());
  metrics_sum_.start(values, step_);
  posted_ = {};
  posted_.step = step_;
  posted_.epoch = epoch();
  posted_.lr = lr_;
  posted_steps_ = std::max<std::int64_t>(line_steps_, 1);
  losses_.reset();
  line_seconds_ = wait_seconds_ = 0.0;
  line_steps_ = 0;
  // A rank that has diverged finds out what the others say at once; nobody trains on for another interval.
  if (losses_.diverged_step() >= 0 || scale_diverged_step() >= 0) emit_metrics();
}

void Trainer::emit_metrics() {
  const std::vector<double> values = metrics_sum_.take();
  double loss_sum = 0.0, loss_count = 0.0, seconds = 0.0, wait = 0.0, diverged = -1.0, overflowed = -1.0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(transport_.size()); ++rank) {
    const double* field = values.data() + kFields * rank;
    loss_sum += field[kLossSum];
    loss_count += field[kLossCount];
    seconds = std::max(seconds, field[kSeconds]);
    wait = std::max(wait, field[kWait]);
    if (field[kDivergedStep] >= 0 && (diverged < 0 || field[kDivergedStep] < diverged)) diverged = field[kDivergedStep];
    if (field[kScaleStep] >= 0 && (overflowed < 0 || field[kScaleStep] < overflowed)) overflowed = field[kScaleStep];
  }
  if (diverged >= 0 || overflowed >= 0) report_diverged(static_cast<std::int64_t>(diverged), static_cast<std::int64_t>(overflowed));
  const auto steps = static_cast<double>(posted_steps_);
  posted_.loss = loss_sum / std::max(loss_count, 1.0);
  posted_.step_ms = 1e3 * seconds / steps;
  posted_.wait_ms = 1e3 * wait / steps;
  posted_.images_per_second =
      steps * static_cast<double>(config_.batch_size * config_.accumulate * transport_.size()) / std::max(seconds, 1e-9);
  images_per_second_ = *posted_.images_per_second;
  if (writer_) writer_->write(posted_);
  if (progress_) progress_->update(posted_.step, posted_.epoch, *posted_.loss, *posted_.lr, *posted_.images_per_second);
}

void Trainer::test(bool last) {
  if (metrics_sum_.pending()) emit_metrics();
  check_finite();
  algorithm_->finish();
  const MeanModelScope mean(*config_.model, buckets_, backend_, transport_);
  EvaluationResult result = evaluate(*config_.model, *evaluation_loader_, backend_, transport_);
  result.consensus_distance = mean.consensus_distance();
  result.bucket_consensus = mean.bucket_consensus();
  result_ = result;
  const bool top5 = config_.model->output_shape().back() > 10;
  if (writer_) {
    MetricsLine line;
    line.step = step_;
    line.epoch = epoch();
    if (result.samples > 0) {
      line.test_loss = result.loss;
      line.test_accuracy = result.accuracy;
      if (top5) line.test_top5 = result.top5;
    }
    line.consensus_distance = result.consensus_distance;
    line.bucket_consensus = result.bucket_consensus;
    writer_->write(line);
  }
  if (progress_ && result.samples > 0) {
    progress_->message(fmt::format("epoch {:.4g}, step {}: test accuracy {:.2f} %, test loss {:.4f}, consensus distance {:.3g}", epoch(),
                                   step_, 100.0 * result.accuracy, result.loss, result.consensus_distance));
  }
  if (last) {
    together(transport_, [&] {
      if (transport_.rank() != 0) return;
      SafetensorsFile file;
      add_model_tensors(*config_.model, "", file);
      file.metadata["format"] = "pt";
      write_safetensors(folder_ + "/model.safetensors", file);
    });
  }
}

SafetensorsFile Trainer::state() {
  RunCounters counters{step_, losses_.sum(), losses_.count(), train_seconds_, std::nullopt};
  if (scaler_) counters.loss_scale = scaler_->settle();
  SafetensorsFile file =
      save_state(*config_.model, buckets_, *config_.rule, counters, config_.resolved, transport_.size(), config_.compute);
  file.metadata["batch_norms_in_convolutions"] = config_.defer_norms ? "1" : "0";
  return file;
}

void Trainer::save_checkpoint(bool last) {
  if (metrics_sum_.pending()) emit_metrics();
  check_finite();
  algorithm_->finish();
  const CheckpointFolder folder(folder_);
  together(transport_, [&] {
    if (transport_.rank() == 0) folder.begin(step_);
  });
  together(transport_, [&] { folder.write(step_, transport_.rank(), state()); });
  together(transport_, [&] {
    if (transport_.rank() == 0) folder.complete(step_, config_.keep);
  });
  if (progress_ && !last) progress_->message(fmt::format("checkpoint of step {} in {}", step_, folder.step_folder(step_)));
}

bool Trainer::stop_agreed() {
  if (transport_.size() == 1) return stop_requested();
  if (step_ % kStopInterval != 0) return false;
  const bool stop = stop_sum_.pending() && stop_sum_.take()[0] > 0.0;
  const double mine = stop_requested() ? 1.0 : 0.0;
  if (!stop) stop_sum_.start({&mine, 1}, step_);
  return stop;
}

void Trainer::step_or_explain_memory() {
  try {
    step();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kMemory || activation_bytes_ == 0) throw;
    // What the device gave so far is what there is; what a batch takes grows with it, the rest does not.
    const auto capacity = static_cast<double>(backend_.memory_stats().reserved);
    const double sample = static_cast<double>(activation_bytes_) / static_cast<double>(config_.batch_size);
    const auto fits = static_cast<std::int64_t>(0.95 * (capacity - static_cast<double>(resident_bytes_)) / sample);
    const std::string_view text = error.what();
    const std::size_t close = text.find("] ");
    throw Error(ExitCode::kMemory, text.substr(1, close - 1),
                fmt::format("{}; step {} with batch_size {}: {}", text.substr(close + 2), step_ + 1, config_.batch_size,
                            fits >= 1 && config_.batch_size > 1
                                ? fmt::format("a batch_size of about {} would fit", std::min(fits, config_.batch_size - 1))
                                : "not even a batch_size of 1 would fit, so the model is too large for this device"));
  }
}

ExitCode Trainer::run(const RunFolder& folder) {
  folder_ = folder.path;
  if (transport_.rank() == 0) {
    writer_ = std::make_unique<MetricsWriter>(folder_, config_.tensorboard, step_);
    progress_ = std::make_unique<Progress>(total_steps(), step_, stdout_is_terminal());
  }
  bool stopped = false;
  algorithm_->take_wait_seconds();
  while (step_ < total_steps() && !stopped) {
    const auto begin = Clock::now();
    step_or_explain_memory();
    const double seconds = seconds_since(begin);
    train_seconds_ += seconds;
    line_seconds_ += seconds;
    ++line_steps_;
    wait_seconds_ += algorithm_->take_wait_seconds();

    const bool last = step_ == total_steps();
    if (step_ % config_.log_every == 0 || last) {
      post_metrics();
    } else if (metrics_sum_.ready()) {
      emit_metrics();
    }
    stopped = !last && stop_agreed();
    if (last || config_.evaluate.due(step_, length_.steps_per_epoch)) test(last);
    if (last || stopped || config_.checkpoint.due(step_, length_.steps_per_epoch)) {
      save_checkpoint(last);
    }
    algorithm_->take_wait_seconds();  // what tests and checkpoints waited for is not training's
  }
  if (stop_sum_.pending()) stop_sum_.take();
  if (metrics_sum_.pending()) emit_metrics();
  algorithm_->finish();
  if (progress_) progress_->finish();
  if (stopped) return ExitCode::kStopped;
  if (!result_) test(true);  // a resumed run that had nothing left to do
  write_summary();
  return ExitCode::kOk;
}

}  // namespace starling
