#include "apps/training/training_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "apps/data/image_collate.h"
#include "apps/inference/version.h"
#include "apps/training/state/state_transfer.h"
#include "apps/training/verify.h"
#include "comm/agreement.h"
#include "core/console.h"
#include "core/error.h"
#include "core/flight_recorder.h"
#include "core/host.h"
#include "core/log.h"
#include "core/stop_signals.h"
#include "core/text.h"
#include "core/trace.h"

namespace starling {

namespace {

using Clock = std::chrono::steady_clock;

// What every rank adds to a line of metrics; rank i's are at i·kFields.
enum Field : std::size_t {
  kLossSum,
  kLossCount,
  kSteps,  // that the rank trained: fewer than others where it left some out
  kSeconds,
  kWait,
  kDataWait,
  kDivergedStep,
  kScaleStep,
  kGradientNorm,  // below 0: not known
  kFields
};

/// Steps between questions whether any rank was told to stop. A question is answered at the latest
/// when the next is due, so that no step waits for it. Ranks whose steps may differ wait for each
/// other at lines of metrics, and here no sooner if they can help it.
constexpr std::int64_t kStopInterval = 4, kMostStopInterval = 64;

/// Lines of metrics that may await the numbers of ranks which others do not wait for.
constexpr std::size_t kMostPosted = 64;
/// More than Quorum::kMostKept outer steps: lines hold nobody that outer steps do not hold.
constexpr std::size_t kOuterStepsApart = 5;

/// Ranks whose waits a line of metrics has each; of more there would be too many.
constexpr int kMostRanksNamed = 64;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

TrainingRun::TrainingRun(Trainer& trainer, std::string folder, Joining joining)
    : trainer_(trainer),
      config_(trainer.config()),
      backend_(trainer.backend()),
      transport_(trainer.transport()),
      folder_(std::move(folder)),
      token_rates_(config_, trainer.target_flops(), backend_, transport_.size()),
      stop_sum_(transport_, backend_, 3),
      checkpoints_(
          transport_.world(), CheckpointFolder(folder_), config_.state.checkpoint.keep,
          [this](std::int64_t saved) {
            const bool last = saved == trainer_.length().total_steps;
            if (progress_ && !last)
              progress_->message(fmt::format("checkpoint of step {} in {}", saved,
                                             CheckpointFolder(folder_).step_folder(saved)));
          }),
      joining_(std::move(joining)) {
  if (const std::string disturbed = token_rates_.disturbance();
      transport_.rank() == 0 && !disturbed.empty())
    log::warning("{}", disturbed);
  if (config_.state.early_stopping) early_.emplace(*config_.state.early_stopping);
}

void TrainingRun::resume(const SafetensorsFile& state, const std::string& source, bool after_loss) {
  after_loss_ = after_loss;
  owes_test_ = state.metadata.count(kOwesTest) > 0;
  const auto counted = state.metadata.find(kEarlyStopping);
  if (early_ && counted != state.metadata.end()) early_->read(counted->second, source);
}

ExitCode TrainingRun::run() {
  try {
    return run_steps();
  } catch (const AgreedError& error) {
    // All ranks are here, or come here before they ask each other anything else. What was saved
    // before the loss was lost is still good. So is what was saved before a bit was found wrong.
    AgreedError told = error;
    if (told.code() == ExitCode::kDiverged || told.parts().component == "verify") {
      try {
        checkpoints_.finish();
      } catch (const AgreedError& earlier) {
        if (earlier.code() != ExitCode::kDiverged) throw;
        told = earlier;  // the numbers were no longer finite when it was written
      }
    }
    if (told.code() != ExitCode::kDiverged) throw;
    ErrorParts parts = told.parts();
    const auto newest = CheckpointFolder(folder_).newest();
    parts.remedy += newest ? fmt::format(" (the last good checkpoint is {})",
                                         CheckpointFolder(folder_).step_folder(*newest))
                           : std::string(" (no checkpoint was saved before)");
    throw AgreedError(told.code(), parts);
  }
}

ExitCode TrainingRun::run_steps() {
  const RunLength& length = trainer_.length();
  const std::int64_t total = length.total_steps;
  // A finished run has written its lines
  if (transport_.rank() == 0 && ((step() < total && !ended_early()) || owes_test_ || after_loss_)) {
    writer_ = std::make_unique<MetricsWriter>(folder_, config_.output, step());
    progress_ = std::make_unique<Progress>(total, step(), stdout_is_terminal());
  }
  read_best();
  // The memory of a checkpoint's copy is taken before the first step, so that no step pays for it.
  if (config_.state.checkpoint.interval.first_due(step(), length) < total) {
    SafetensorsFile used;
    if (joining_.checkpoint_memory) used = std::exchange(*joining_.checkpoint_memory, {});
    checkpoints_.give_used(used.tensors.empty() ? trainer_.state() : std::move(used));
  }
  bool stopped = owes_test_ && step() < total && !test(false);
  if (stopped) return ExitCode::kStopped;  // the checkpoint that it continued from is still there
  trainer_.take_wait_seconds();
  if (after_loss_) post_owed_metrics();
  while (step() < total && !stopped && !joins_ && !ended_early()) {
    const auto begin = Clock::now();
    if (trainer_.step()) ++line_steps_;
    add_seconds(seconds_since(begin));
    note_meetings();
    wait_seconds_ += trainer_.take_wait_seconds();
    data_wait_seconds_ += trainer_.take_data_wait_seconds();

    const bool last = step() == total;
    if (step() % config_.output.log_every == 0 || last) {
      post_metrics();
    } else {
      while (!posted_.empty() && posted_.front().sum->ready()) emit_metrics();
    }
    stopped = !last && stop_agreed();
    const bool tests = last || config_.evaluate.interval.due(step(), length);
    owes_test_ = tests;
    joins_ = !last && !stopped && joins_now();
    if (!joins_ && !stopped) offer_state();
    const bool saves = last || stopped || config_.state.checkpoint.interval.due(step(), length);
    if ((config_.sync.verify_checkpoints && saves) ||
        (config_.sync.verify_every > 0 && step() % config_.sync.verify_every == 0))
      verify_replicas(trainer_);
    if (tests && !stopped)
      stopped = owes_test_ = !(saves ? test_before_checkpoint(last) : test(last));
    if (ended_early() && line_steps_ > 0) post_metrics();
    if (saves || stopped || ended_early()) save_checkpoint(last || stopped || ended_early());
    trainer_.take_wait_seconds();  // what tests and checkpoints waited for is not training's
  }
  // Under a quorum ranks are at different steps, so that they cannot all end here. This rank
  // leaves; the others notice, interrupt their steps as after a loss, and all connect again.
  if (joins_ && joins_at_once_ && trainer_.algorithm().steps.leaves_out && transport_.size() > 1) {
    joining_.membership->let_in();
    fail(ExitCode::kLost, "join", {.step = step()}, "a rank that has a copy of the state joins");
  }
  if (stop_sum_.pending()) stop_sum_.take();
  emit_all_metrics();
  trainer_.finish();
  checkpoints_.finish();
  if (progress_) progress_->finish();
  joins_ = joins_ && !stopped && !ended_early();
  if (joins_ && transport_.rank() == 0) joining_.membership->let_in();
  if (joins_) return ExitCode::kOk;
  if (stopped) return ExitCode::kStopped;
  // A resumed run that had nothing left to do
  if (!result_ && !test(true)) return ExitCode::kStopped;
  if (ended_early()) tell_early_end();
  write_summary();
  return ExitCode::kOk;
}

void TrainingRun::add_seconds(double seconds) {
  trainer_.add_seconds(seconds);
  line_seconds_ += seconds;
}

void TrainingRun::catch_up() {
  const auto begin = Clock::now();
  losses().drain();
  if (LossScaler* scaler = trainer_.loss_scaler()) scaler->settle();
  add_seconds(seconds_since(begin));
}

void TrainingRun::check_finite() {
  catch_up();
  // The first steps of any rank; a step that never was is far in the future.
  constexpr double kNever = 1e18;
  const auto negated = [](std::int64_t step) {
    return step < 0 ? -kNever : -static_cast<double>(step);
  };
  double first[2] = {negated(losses().diverged_step()), negated(scale_diverged_step())};
  if (transport_.size() > 1) transport_.world().max(first, 2);
  const auto step_of = [](double value) {
    return value == -kNever ? std::int64_t{-1} : static_cast<std::int64_t>(-value);
  };
  if (first[0] != -kNever || first[1] != -kNever)
    report_diverged(step_of(first[0]), step_of(first[1]));
}

void TrainingRun::report_diverged(std::int64_t loss_step, std::int64_t scale_step) const {
  const std::string numbers =
      images_of(config_.data.info).pictures ? "" : implausible_values(*config_.data.dataset);
  if (loss_step >= 0) {
    fail_on_all_ranks(ExitCode::kDiverged, "trainer", {.step = loss_step},
                      "training diverged: the loss of step {} is not a finite number; {}use a "
                      "smaller learning rate, a longer warm-up or clip_norm",
                      loss_step,
                      numbers.empty() ? "" : "the data has " + numbers + ": scale them first, or ");
  }
  fail_on_all_ranks(ExitCode::kDiverged, "trainer", {.step = scale_step},
                    "training diverged: the gradients of step {} and of those before it overflow "
                    "fp16 even with a loss scale of {:.3g}; use "
                    "a smaller learning rate, clip_norm, or bf16",
                    scale_step, config_.state.loss_scale.least);
}

void TrainingRun::post_owed_metrics() {
  const std::int64_t due = step() - step() % config_.output.log_every;
  double owed = writer_ && writer_->last_loss() < due ? 1.0 : 0.0;
  if (transport_.size() > 1) transport_.world().max(&owed, 1);
  if (owed > 0.0) post_metrics(due);
}

void TrainingRun::post_metrics(std::int64_t of_step) {
  const AlgorithmSteps& steps = trainer_.algorithm().steps;
  const auto between = static_cast<std::size_t>(steps.joins_every / config_.output.log_every);
  const std::size_t most = steps.leaves_out ? kMostPosted + kOuterStepsApart * between : 1;
  while (posted_.size() >= most) emit_metrics();
  catch_up();
  const auto ranks = static_cast<std::size_t>(transport_.size());
  std::vector<double> values(kFields * ranks, 0.0);
  double* mine = values.data() + kFields * static_cast<std::size_t>(transport_.rank());
  mine[kLossSum] = std::isfinite(losses().sum()) ? losses().sum() : 0.0;
  mine[kLossCount] = static_cast<double>(losses().count());
  mine[kSteps] = static_cast<double>(line_steps_);
  mine[kSeconds] = line_seconds_;
  mine[kWait] = wait_seconds_;
  mine[kDataWait] = data_wait_seconds_;
  mine[kDivergedStep] = static_cast<double>(losses().diverged_step());
  mine[kScaleStep] = static_cast<double>(scale_diverged_step());
  const double norm = trainer_.gradient_norm().value_or(-1.0);
  mine[kGradientNorm] = std::isfinite(norm) ? norm : -1.0;
  std::unique_ptr<AsyncSum> sum = std::move(unused_sum_);
  if (!sum) sum = std::make_unique<AsyncSum>(transport_, backend_, values.size());
  sum->start(values, step());
  MetricsLine line;
  line.step = of_step;
  line.epoch = trainer_.length().epochs_at(of_step);
  line.lr = trainer_.lr();
  line.bytes_sent = trainer_.bytes_sent();
  posted_.push_back({std::move(sum), std::move(line), losses().sum(), losses().count()});
  losses().reset();
  line_seconds_ = wait_seconds_ = data_wait_seconds_ = 0.0;
  line_steps_ = 0;
  // A rank that has diverged finds out what the others say at once; nobody trains on for another
  // interval.
  if (losses().diverged_step() >= 0 || scale_diverged_step() >= 0) emit_all_metrics();
}

void TrainingRun::note_meetings() {
  for (const Algorithm::Meeting& meeting : trainer_.take_meetings()) {
    const std::int64_t steps = meeting.step + 1;
    if (meeting.stop) stop_step_ = steps;
    if (meeting.join) join_step_ = steps;
    if (!writer_) continue;
    MetricsLine line;
    line.step = steps;
    line.epoch = trainer_.length().epochs_at(steps);
    line.participants = meeting.participants;
    writer_->write(line);
  }
}

void TrainingRun::emit_metrics() {
  const std::vector<double> values = posted_.front().sum->take();
  PostedLine posted = std::move(posted_.front());
  posted_.pop_front();
  MetricsLine& line = posted.line;
  unused_sum_ = std::move(posted.sum);
  double loss_sum = 0.0, loss_count = 0.0, all_steps = 0.0, steps = 1.0, seconds = 0.0, wait = 0.0,
         data_wait = 0.0, diverged = -1.0, overflowed = -1.0;
  double slowest = -1.0, fastest = std::numeric_limits<double>::infinity();
  double norms = 0.0, largest_norm = 0.0;
  bool norms_known = true;
  std::int64_t slowest_rank = 0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(transport_.size()); ++rank) {
    const double* field = values.data() + kFields * rank;
    loss_sum += field[kLossSum];
    loss_count += field[kLossCount];
    all_steps += field[kSteps];
    steps = std::max(steps, field[kSteps]);
    seconds = std::max(seconds, field[kSeconds]);
    wait = std::max(wait, field[kWait]);
    if (transport_.size() > 1 && transport_.size() <= kMostRanksNamed)
      line.rank_wait_ms.push_back(1e3 * field[kWait] / std::max(field[kSteps], 1.0));
    data_wait = std::max(data_wait, field[kDataWait]);
    norms_known = norms_known && field[kGradientNorm] >= 0.0;
    norms += field[kGradientNorm];
    largest_norm = std::max(largest_norm, field[kGradientNorm]);
    if (field[kSteps] > 0.0) {
      const double own = 1e3 * std::max(field[kSeconds] - field[kWait], 0.0) / field[kSteps];
      if (own > slowest) slowest_rank = static_cast<std::int64_t>(rank);
      slowest = std::max(slowest, own);
      fastest = std::min(fastest, own);
    }
    if (field[kDivergedStep] >= 0 && (diverged < 0 || field[kDivergedStep] < diverged))
      diverged = field[kDivergedStep];
    if (field[kScaleStep] >= 0 && (overflowed < 0 || field[kScaleStep] < overflowed))
      overflowed = field[kScaleStep];
  }
  if (diverged >= 0 || overflowed >= 0)
    report_diverged(static_cast<std::int64_t>(diverged), static_cast<std::int64_t>(overflowed));
  line.loss = loss_sum / std::max(loss_count, 1.0);
  if (norms_known) {
    line.grad_norm = norms / transport_.size();
    line.grad_norm_max = largest_norm;
  }
  line.step_ms = 1e3 * seconds / steps;
  line.wait_ms = 1e3 * wait / steps;
  line.data_wait_ms = 1e3 * data_wait / steps;
  if (transport_.size() > 1 && slowest >= 0.0) {
    line.slowest_rank = slowest_rank;
    line.slowest_rank_ms = slowest;
    line.fastest_rank_ms = fastest;
  }
  line.samples_per_second =
      all_steps * static_cast<double>(config_.length.batch_size * config_.length.accumulate) /
      std::max(seconds, 1e-9);
  token_rates_.add_to(line);
  line.core_wait = std::exchange(core_wait_, {}).share();
  if (writer_) writer_->write(line);
  if (progress_) progress_->update(line, config_.data.info.collate().unit());
}

void TrainingRun::save_checkpoint(bool last) {
  const TraceSpan span("checkpoint", std::to_string(step()));
  const FlightSpan noted(FlightEvent::kCheckpoint, FlightEvent::kSaved, {.step = step()});
  emit_all_metrics();
  check_finite();
  trainer_.finish();
  checkpoints_.finish();  // before the copy, so that there is one at most
  // A GPU's tensors are read by this thread alone.
  const bool copies = !last || backend_.device() != DeviceType::kCpu;
  SafetensorsFile used = checkpoints_.take_used();
  SafetensorsFile state = trainer_.state(copies ? std::move(used) : SafetensorsFile(), copies);
  add_to(state);
  checkpoints_.start(step(), std::move(state));
  // Between meetings no rank knows what all others have written.
  if (trainer_.algorithm().steps.leaves_out) checkpoints_.finish();
}

std::optional<SafetensorsFile> TrainingRun::handover_state(bool lost) {
  losses().drain();
  for (const PostedLine& line : posted_)
    losses().reset(losses().sum() + line.loss_sum, losses().count() + line.losses);
  std::optional<SafetensorsFile> state = trainer_.handover_state();
  if (state) add_to(*state);
  if (state && lost) state->metadata[kLost] = "1";
  if (joining_.checkpoint_memory) *joining_.checkpoint_memory = checkpoints_.take_used();
  return state;
}

void TrainingRun::add_to(SafetensorsFile& state) const {
  if (owes_test_) state.metadata[kOwesTest] = "1";
  if (early_) state.metadata[kEarlyStopping] = early_->text();
}

TrainingRun::Joins TrainingRun::asked_to_join() {
  if (!joining_.membership || transport_.rank() != 0) return kNever;
  if (!joining_.membership->asked()) {
    fits_ = renewed_ = false;  // the next one has an offer of its own
    offered_step_ = -1;
    return kNever;
  }
  if (!fits_) {
    const std::string why_not = joining_.why_not(step());
    if (!why_not.empty()) joining_.membership->refuse(why_not);
    fits_ = why_not.empty();
    if (!fits_) return kNever;
  }
  // A replica's ranks have its state together: it is handed over when all have stopped.
  if (config_.sync.replica > 1) return kAtOuterStep;
  if (offered_step_ < 0 || trainer_.is_behind() || !joining_.membership->fetched()) return kNever;
  if (!trainer_.algorithm().equality.any()) return kAtOuterStep;
  if (same_period(offered_step_)) return kNow;
  // Where a period is too short for it, all wait for the state after an outer step.
  return renewed_ ? kAtOuterStep : kNever;
}

bool TrainingRun::same_period(std::int64_t algorithm_steps) const {
  const AlgorithmSteps& steps = trainer_.algorithm().steps;
  const std::int64_t now = trainer_.algorithm_steps();
  return now / steps.joins_every == algorithm_steps / steps.joins_every &&
         now % steps.joins_every < steps.joins_within;
}

void TrainingRun::offer_state() {
  const AlgorithmSteps& steps = trainer_.algorithm().steps;
  if (!fits_ || config_.sync.replica > 1 || trainer_.is_behind()) return;
  const bool by_periods = trainer_.algorithm().equality.any();
  const std::int64_t now = trainer_.algorithm_steps();
  // An outer step came first. Another offer has a whole period.
  if (by_periods && offered_step_ >= 0 && !renewed_ &&
      now / steps.joins_every != offered_step_ / steps.joins_every) {
    renewed_ = true;
    offered_step_ = -1;
  }
  if (offered_step_ >= 0 || (by_periods && !same_period(now))) return;
  if (memory_.valid() && memory_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    return;
  // Under a quorum that would wait for ranks that are behind; nothing under way is in the state.
  if (!steps.leaves_out) trainer_.finish();
  std::optional<SafetensorsFile> state = trainer_.handover_state();
  if (!state) return;
  if (!memory_.valid()) {
    memory_ = memory_for(*state, backend_);
    return;
  }
  offered_step_ = now;
  joining_.membership->offer(offered_state(std::move(*state), memory_.get()));
}

void TrainingRun::note_joins(Joins joins) {
  join_agreed_ = join_agreed_ || joins == kAtOuterStep;
  joins_at_once_ = joins == kNow;
}

bool TrainingRun::joins_now() const {
  if (joins_at_once_) return true;
  if (trainer_.algorithm().steps.leaves_out && transport_.size() > 1) return step() == join_step_;
  return join_agreed_ && trainer_.algorithm_steps() % trainer_.algorithm().steps.joins_every == 0;
}

bool TrainingRun::stop_agreed() {
  if (transport_.size() == 1) {
    note_joins(asked_to_join());
    if (checkpoints_.pending() && !checkpoints_.busy()) checkpoints_.advance();
    return stop_requested();
  }
  if (trainer_.algorithm().steps.leaves_out) {
    if (stop_requested()) trainer_.ask_to_stop();
    const Joins joins = join_agreed_ ? kNever : asked_to_join();
    note_joins(joins);
    if (joins == kAtOuterStep) trainer_.ask_to_join();
    return step() == stop_step_;
  }
  const bool apart = trainer_.algorithm().steps.asynchronous;
  const std::int64_t interval =
      apart ? std::clamp(config_.output.log_every, kStopInterval, kMostStopInterval)
            : kStopInterval;
  if (step() % interval != 0) return false;
  bool stop = false;
  if (stop_sum_.pending()) {
    const std::vector<double> told = stop_sum_.take();
    stop = told[0] > 0.0;
    const auto joins = static_cast<Joins>(static_cast<int>(told[2]));
    note_joins(joins == kNow && !same_period(asked_step_) ? kNever : joins);
    if (checkpoints_.pending() && asked_part_ == checkpoints_.part_number() && told[1] == 0.0)
      checkpoints_.advance();
  }
  if (stop) return true;
  asked_part_ = checkpoints_.part_number();
  const double mine[] = {stop_requested() ? 1.0 : 0.0, checkpoints_.busy() ? 1.0 : 0.0,
                         static_cast<double>(join_agreed_ ? kNever : asked_to_join())};
  asked_step_ = trainer_.algorithm_steps();
  stop_sum_.start(mine, step());
  return false;
}

namespace {

/// The numbers of texts such as "7,12,40", each once. Ranks meet the same bad pictures in other
/// epochs.
std::set<std::string> different_of(const std::vector<std::string>& lists) {
  std::set<std::string> result;
  for (const std::string& list : lists) {
    std::istringstream numbers(list);
    for (std::string number; std::getline(numbers, number, ',');) result.insert(number);
  }
  return result;
}

}  // namespace

void TrainingRun::write_summary() {
  const bool cpu = backend_.device() == DeviceType::kCpu;
  double peak = static_cast<double>(cpu ? peak_resident_bytes() : backend_.memory_stats().reserved);
  double seconds = trainer_.seconds();
  LossScaler* scaler = trainer_.loss_scaler();
  double skipped = scaler ? static_cast<double>(step() + 1 - scaler->settle().optimizer_step) : 0.0;
  CachedDataset::Counts cached;
  if (config_.data.cache) cached = config_.data.cache->counts();
  double cache[] = {static_cast<double>(cached.hits), static_cast<double>(cached.decoded),
                    static_cast<double>(cached.kept), static_cast<double>(cached.bytes)};
  std::vector<std::string> hosts{host_name()};
  std::vector<std::string> bad{
      fmt::format("{}", fmt::join(config_.data.dataset->bad_samples(), ","))};
  if (transport_.size() > 1) {
    transport_.world().max(&peak, 1);
    transport_.world().max(&seconds, 1);
    transport_.world().max(&skipped, 1);
    if (config_.data.cache) transport_.world().sum(cache, std::size(cache));
    hosts = transport_.world().all_gather(host_name());
    if (images_of(config_.data.info).pictures) bad = transport_.world().all_gather(bad[0]);
  }
  on_all_ranks(transport_, [&] {
    if (transport_.rank() != 0) return;
    std::sort(hosts.begin(), hosts.end());
    hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
    const auto samples = static_cast<double>(trainer_.length().samples_seen(step()));
    const double rate = seconds > 0 ? samples / seconds : 0.0;
    nlohmann::json summary{
        {"steps", step()},
        {"epochs", trainer_.epoch()},
        {"train_seconds", seconds},
        {"samples_per_second", rate},
        {"images_per_second", rate},  // as it was called
        {"peak_memory_bytes", static_cast<std::uint64_t>(peak)},
        {"ranks", transport_.size()},
        {"parameters", config_.model->parameter_count()},
        {"version", version_text()},
        {"commit", commit_text()},
        {"hosts", hosts},
        {"device", backend_.description()},
        {"precision", name_of(config_.device.compute)},
        {"transport", trainer_.exchange_name()},
        {"algorithm", config_.sync.algorithm.name},
        {"topology", config_.sync.topology_name},
        {"consensus_distance", result_->consensus_distance},
    };
    token_rates_.add_to(summary);
    if (!config_.sync.auto_figures.is_null()) summary["auto"] = config_.sync.auto_figures;
    if (images_of(config_.data.info).pictures) {
      const std::set<std::string> different = different_of(bad);
      summary["bad_pictures"] = different.size();
      if (!different.empty())
        log::warning(
            "data: {} picture{} could not be decoded; in training others of the class stood in, "
            "tests left them out",
            different.size(), different.size() == 1 ? "" : "s");
    }
    if (config_.data.cache) {
      const auto count = [&](std::size_t i) { return static_cast<std::int64_t>(cache[i]); };
      summary["cache"] = {
          {"hits", count(0)}, {"decoded", count(1)}, {"samples", count(2)}, {"bytes", count(3)}};
    }
    if (const std::vector<Stretch>& stretches = trainer_.length().stretches();
        stretches.size() > 1 && stretches.back().ranks != stretches[stretches.size() - 2].ranks)
      summary["elastic"] = {{"from_ranks", stretches[stretches.size() - 2].ranks},
                            {"step", stretches.back().step}};
    if (ended_early()) {
      summary["early_stopping"] = {{"metric", early_->settings().metric},
                                   {"best", early_->best()},
                                   {"best_step", early_->best_step()},
                                   {"planned_steps", trainer_.length().total_steps}};
    }
    if (best_) summary["best"] = {{"step", best_->step}, {best_->metric, best_->value}};
    if (scaler) summary["skipped_steps"] = static_cast<std::int64_t>(skipped);
    if (result_->samples > 0) {
      for (const MetricValue& metric : result_->values)
        summary["test_" + metric.name] = metric.value;
    }
    const std::string text = summary.dump(2) + "\n";
    write_file_atomically(folder_ + "/summary.json", text.data(), text.size());
  });
}

}  // namespace starling
