#include "apps/training/training_run.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/inference/companions.h"
#include "apps/inference/generation.h"
#include "apps/training/config/model_metadata.h"
#include "apps/training/evaluate_model.h"
#include "apps/training/tasks/metric.h"
#include "comm/agreement.h"
#include "core/console.h"
#include "core/error.h"
#include "core/flight_recorder.h"
#include "core/log.h"
#include "core/safetensors.h"
#include "core/stop_signals.h"
#include "core/text.h"

// The tests of a run: what is told and written of each, and which is the best.
namespace starling {
namespace {

/// "test accuracy 91.20 %, test balanced_accuracy 90.01 %, test loss 0.2731, "
std::string text_of(const std::vector<MetricValue>& metrics) {
  std::string shares, others;
  for (const MetricValue& metric : metrics) {
    if (std::isnan(metric.value)) {
      others += fmt::format("no test {}, ", metric.name);
    } else if (metric.share) {
      shares += fmt::format("test {} {:.2f} %, ", metric.name, 100.0 * metric.value);
    } else {
      others += fmt::format("test {} {:.4f}, ", metric.name, metric.value);
    }
  }
  return shares + others;
}

}  // namespace

bool TrainingRun::test(bool last) {
  const FlightSpan noted(FlightEvent::kTest, FlightEvent::kTested, {.step = step()});
  emit_all_metrics();
  check_finite();
  trainer_.finish();
  if (last) on_all_ranks(transport_, [&] { trainer_.check_updated(); });
  const auto keep_average = [&] {
    if (!last && !(early_ && early_->may_end())) return;
    on_all_ranks(transport_, [&] {
      if (transport_.rank() == 0) write_model(config_, step(), folder_ + "/model.ema.safetensors");
    });
  };
  const auto of_mean = [&](const EvaluationResult& result) {
    // One that makes up for the last, or follows the end, has been counted.
    const bool ends =
        early_ && !early_->ended() && result.samples > 0 && early_->ends(result.values, step());
    tell(result, last || ends);
    compare_with_best(result);
  };
  const EvaluationResult result =
      trainer_.test(Trainer::TestedModels{of_mean, keep_average, stop_requested});
  if (result.stopped) return false;
  result_ = result;
  if (is_best_) save_best();
  return true;
}

bool TrainingRun::test_before_checkpoint(bool last) {
  try {
    return test(last);
  } catch (const AgreedError& error) {
    // The run is ill, not the data: then others may not come along either
    if (error.code() != ExitCode::kUsage) throw;
    owes_test_ = false;  // it would fail again
    try {
      save_checkpoint(true);
      checkpoints_.finish();
    } catch (const AgreedError& second) {
      if (transport_.rank() == 0)
        log::warning("the checkpoint of step {} is not saved: {}", step(), second.message());
    }
    throw;
  }
}

void TrainingRun::read_best() {
  if (!config_.state.checkpoint.best) return;
  on_all_ranks(transport_, [&] {
    if (transport_.rank() != 0) return;
    best_ = whole_best();
    // Of another metric's values none can be compared with it.
    if (best_ && best_->metric != config_.state.checkpoint.best->metric) best_.reset();
  });
  if (best_ && best_->step > step()) best_.reset();
  if (transport_.size() == 1) return;
  double known[] = {best_ ? 1.0 : 0.0, best_ ? static_cast<double>(best_->step) : 0.0,
                    best_ ? best_->value : 0.0};
  transport_.world().broadcast(known, sizeof known, 0);
  if (known[0] == 0.0) {
    best_.reset();
  } else {
    best_ = {static_cast<std::int64_t>(known[1]), best_ ? best_->metric : "", known[2]};
  }
}

std::optional<CheckpointFolder::Best> TrainingRun::whole_best() const {
  const CheckpointFolder folder(folder_);
  try {
    return folder.best();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    const std::string reason = folder.set_best_aside();
    log::warning("{}; {}, and the next test makes a new best checkpoint", error.parts().message(),
                 reason.empty() ? "it is kept as best.damaged"
                                : "it cannot be renamed to best.damaged (" + reason + ")");
    return std::nullopt;
  }
}

void TrainingRun::compare_with_best(const EvaluationResult& result) {
  is_best_ = false;
  const auto& by = config_.state.checkpoint.best;
  const MetricValue* chosen = by && result.samples > 0 ? by->of(result.values) : nullptr;
  if (!chosen || !std::isfinite(chosen->value)) return;
  is_best_ = !best_ || by->better(chosen->value, best_->value);
  if (!is_best_) return;
  best_ = {step(), by->metric, chosen->value};
  on_all_ranks(transport_, [&] {
    if (transport_.rank() != 0) return;
    const CheckpointFolder folder(folder_);
    folder.begin_best();
    write_model(config_, step(), folder.new_best_folder() + "/model.safetensors");
  });
}

void TrainingRun::save_best() {
  const CheckpointFolder folder(folder_);
  FileDigest mine;
  SafetensorsFile state;
  std::map<std::string, std::string> sums;
  on_all_ranks(transport_, [&] {
    state = trainer_.state({}, false);
    if (transport_.size() > 1) sums = checksums_of(state);
  });
  share_tensors(transport_.world(), sums, state);
  on_all_ranks(transport_, [&] { mine = folder.write_best(transport_.rank(), state); });
  const std::vector<FileDigest> files = all_digests(transport_.world(), mine);
  on_all_ranks(transport_, [&] {
    if (transport_.rank() == 0) folder.complete_best(*best_, files);
  });
}

void TrainingRun::tell(const EvaluationResult& result, bool last) {
  for (const MetricValue& metric : result.values) {
    if (result.samples == 0 || std::isfinite(metric.value)) continue;
    if (metric.name.ends_with("loss")) {
      fail_on_all_ranks(ExitCode::kDiverged, "trainer", {.step = step()},
                        "the test after step {} gives test_{} {}: the model's outputs overflow; "
                        "use a smaller learning rate, or test later, "
                        "when batch norm's statistics have settled",
                        step(), metric.name, metric.value);
    }
    if (transport_.rank() == 0)
      log::warning(
          "the test after step {} gives no test_{}{}; it counts for no best checkpoint, nor "
          "for early_stopping",
          step(), metric.name, metric.name == "r2" ? ", as all its targets are the same" : "");
  }
  if (writer_) {
    MetricsLine line;
    line.step = step();
    line.epoch = trainer_.epoch();
    if (result.samples > 0) line.test = result.values;
    line.consensus_distance = result.consensus_distance;
    line.bucket_consensus = result.bucket_consensus;
    line.sample = sample();
    writer_->write(line);
    if (progress_ && !line.sample.empty())
      progress_->message("sample: " + shown(line.sample, std::string::npos));
    if (result.confusion.classes > 0) {
      const std::string table =
          confusion_csv(result, config_.data.info.names_of_classes(config_.data.info.classes));
      write_file_atomically(folder_ + "/confusion.csv", table.data(), table.size());
    }
  }
  if (progress_ && result.samples > 0) {
    progress_->message(fmt::format("epoch {:.4g}, step {}: {}consensus distance {:.3g}",
                                   trainer_.epoch(), step(), text_of(result.values),
                                   result.consensus_distance));
  }
  if (last) {
    on_all_ranks(transport_, [&] {
      if (transport_.rank() != 0) return;
      write_model(config_, step(), folder_ + "/model.safetensors");
    });
  }
}

std::string TrainingRun::sample() const {
  const std::string& prompt = config_.evaluate.prompt;
  if (prompt.empty()) return {};
  try {
    const ModelDescription description = description_of(config_);
    const auto tokenizer = Tokenizer::parse(description.tokenizer, "data.tokenizer");
    const TextBounds bounds = text_bounds(description);
    const Generated made = generate(*config_.model, backend_, tokenizer.get(), bounds,
                                    prompt_tokens(*tokenizer, bounds, prompt),
                                    {.tokens = config_.evaluate.prompt_tokens}, {});
    return repaired_utf8(prompt) + made.text;
  } catch (const Error& error) {  // no reason to end a run
    if (error.code() != ExitCode::kUsage) throw;
    log::warning("evaluate.prompt after step {}: {}", step(), error.message());
    return {};
  }
}

void TrainingRun::tell_early_end() {
  if (transport_.rank() != 0) return;
  const EarlyStoppingSettings& by = early_->settings();
  say("stopped early after step {} of {}: {} test{} in a row without a better {}{}; the best was "
      "{:.6g}, after step {}\n",
      step(), trainer_.length().total_steps, by.patience, by.patience == 1 ? "" : "s", by.metric,
      by.min_delta > 0.0 ? fmt::format(" (by more than {})", by.min_delta) : "", early_->best(),
      early_->best_step());
}

}  // namespace starling
