#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "apps/training/device/device.h"
#include "apps/training/host_numbers.h"
#include "apps/training/trainer.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"

// Checks of a trainer: parameters that were not updated, numbers, differences from a checkpoint.
namespace starling {

void Trainer::record_initial_checksums() {
  first_step_ = step_;
  initial_checksums_.clear();
  for (const Bucket& bucket : buckets_)
    initial_checksums_.push_back(
        tensor_checksum(whole_in(replica_.get(), bucket, bucket.parameters)));
}

void Trainer::check_updated() const {
  std::int64_t least = 1;  // steps after which every bucket has been updated
  for (std::size_t k = 0; k < config_.sync.phases(); ++k) {
    const AlgorithmPlan& plan = part(k).algorithm;
    least = std::max({least, plan.steps.period, config_.optimizer.rule->facts().phases});
    for (const StepKey& key : plan.steps.keys) least = std::max(least, key.steps + key.after);
  }
  if (scaler_ || largest_lr_ == 0.0 || step_ - first_step_ < least) return;
  scheduler_->before_reads();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Tensor whole = whole_in(replica_.get(), buckets_[b], buckets_[b].parameters);
    if (tensor_checksum(whole) != initial_checksums_[b]) continue;
    bool taken = false;
    for (const BucketSlot& slot : buckets_[b].layout->slots) {
      const std::size_t group = config_.optimizer.group_of(*slot.parameter);
      if (group > 0 && (config_.optimizer.groups[group - 1].lr_scale == 0.0 ||
                        config_.optimizer.groups[group - 1].until_epoch > 0.0))
        continue;
      if (!slot.parameter->grad) {  // an update has taken it
        taken = true;
        continue;
      }
      const std::vector<double> gradient = host_numbers(slot.parameter->grad);
      if (std::ranges::all_of(gradient, [](double number) { return number == 0.0; })) continue;
      fail(ExitCode::kUsage, "algorithm",
           {.key = algorithm().label(), .step = step_, .bucket = static_cast<int>(b)},
           "after {} bucket {} is as it was, though its parameter {} has a gradient; the "
           "algorithm must update every bucket, or the rate is too small to change a number",
           counted(step_ - first_step_, "step"), b, slot.parameter->name);
    }
    if (taken && transport_.rank() == 0)
      log::warning(
          "after {} bucket {}, whose first parameter is {}, is as it was; its gradients were 0, or "
          "the rate is too small to change a number",
          counted(step_ - first_step_, "step"), b, buckets_[b].layout->slots[0].parameter->name);
  }
}

void Trainer::watch_numbers(const Batch& batch, Pass& pass) const {
  const auto look = [rank = transport_.rank(), step = step_ + 1](
                        const Tensor& tensor, std::string_view key, std::string_view what) {
    check_finite(tensor, std::string(key), std::string(what), rank, step);
  };
  scheduler_->before_reads();
  for (const Parameter* parameter : config_.model->parameters())
    look(parameter->value ? parameter->value : parameter->low, parameter->name, "the parameter");
  for (const Batch::Named& given : batch.tensors)
    look(given.tensor, given.name, "the batch's tensor");
  pass.layer_observer = [look](std::string_view layer, Values, const Variable& out) {
    look(out.value(), layer, "its output");
  };
  if (scaler_) return;  // which finds the loss scale by gradients that overflow
  pass.tape->set_gradient_observer(
      [look](std::string_view layer, std::string_view of, const Tensor& gradient) {
        look(gradient, shown(layer), fmt::format("its gradient of {}", of));
      });
}

void Trainer::warn_of_changes(const SafetensorsFile& file, const std::string& source) const {
  if (const auto made = file.metadata.find(kThreads);
      made != file.metadata.end() && made->second != threads_text()) {
    log::info(
        "the checkpoint was made with {} a rank, now there are {}: sums over them may "
        "differ in their last bits",
        counted(std::atoll(made->second.c_str()), "thread"), threads_text());
  }
  const nlohmann::json before = saved_config(file, source);
  const auto number = [&](const char* key) {
    return before.contains(key) && before[key].is_number() ? before[key].get<double>() : 0.0;
  };
  const RunLength length(length_.stretches(), config_.data.info.train_samples,
                         config_.length.accumulate, number("epochs"),
                         static_cast<std::int64_t>(number("steps")));
  if (length.total_steps == length_.total_steps || step_ >= length_.total_steps) return;
  const auto schedule =
      config_.optimizer.make_schedule({config_.optimizer.lr, length.first_total(),
                                       static_cast<double>(length.first_steps_per_epoch())});
  const double was = schedule->lr(length.planned_step(step_)),
               is = schedule_->lr(length_.planned_step(step_));
  if (std::abs(is - was) <= 1e-6 * std::abs(was)) return;
  log::warning(
      "the schedule spans {} steps now and {} before: the rate of step {} is {:.6g}, where it "
      "would have been {:.6g}",
      length_.total_steps, length.total_steps, step_ + 1, is, was);
}

std::string Trainer::threads_text() const {
  return backend_.device() == DeviceType::kCpu
             ? std::to_string(compute_threads(config_.device, transport_.world().local_size()))
             : "";
}

}  // namespace starling
