#include <algorithm>
#include <cstddef>

#include "comm/flight.h"
#include "comm/scheduler.h"
#include "core/error.h"

namespace starling {

BucketScheduler::BucketScheduler(const BucketPlan& plan, std::vector<Bucket>& buckets,
                                 Algorithm& algorithm, bool allow_unused)
    : plan_(plan),
      buckets_(buckets),
      algorithm_(algorithm),
      allow_unused_(allow_unused),
      missing_(plan.buckets.size()),
      seen_(plan.bucket_of.size()) {
  require(buckets.size() == plan.buckets.size(), "scheduler", "{} buckets for a plan of {}",
          buckets.size(), plan.buckets.size());
}

void BucketScheduler::begin_step(const StepInfo& info) {
  for (std::size_t b = 0; b < missing_.size(); ++b)
    missing_[b] = static_cast<std::int64_t>(plan_.buckets[b].slots.size());
  std::fill(seen_.begin(), seen_.end(), char{0});
  next_ = dropped_ = 0;
  step_ = info.step;
  named(
      "algorithm", [&] { return place(-1); }, [&] { algorithm_.begin(info); });
}

std::string BucketScheduler::place(int bucket) const {
  return bucket < 0 ? fmt::format("step {}", step_)
                    : fmt::format("step {}, bucket {}", step_, bucket);
}

Bucket* BucketScheduler::bucket_of(const Parameter& parameter) {
  const auto index = static_cast<std::size_t>(parameter.index);
  if (parameter.index < 0 || index >= plan_.bucket_of.size() || plan_.bucket_of[index] < 0)
    return nullptr;
  return &buckets_[static_cast<std::size_t>(plan_.bucket_of[index])];
}

void BucketScheduler::begun(const Parameter& parameter) {
  if (Bucket* const bucket = bucket_of(parameter)) bucket->hold_gradients();
}

void BucketScheduler::before_read(const Parameter& parameter) {
  if (Bucket* const bucket = bucket_of(parameter))
    algorithm_.before_read(static_cast<int>(bucket - buckets_.data()));
}

void BucketScheduler::before_reads() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) algorithm_.before_read(static_cast<int>(b));
}

void BucketScheduler::ready(Parameter& parameter) {
  const auto index = static_cast<std::size_t>(parameter.index);
  if (!bucket_of(parameter)) {
    require(!parameter.trainable, "scheduler", "step {}: parameter '{}' is in no bucket", step_,
            parameter.name);
    return;
  }
  require(!seen_[index], "scheduler", "step {}: parameter '{}' was ready twice", step_,
          parameter.name);
  seen_[index] = 1;
  --missing_[static_cast<std::size_t>(plan_.bucket_of[index])];
  hand_over();
}

void BucketScheduler::backward(const std::function<void()>& pass) {
  struct Ended {
    BucketScheduler& of;
    ~Ended() {
      of.span_.reset();
      of.in_backward_ = false;
    }
  } const ended{*this};
  in_backward_ = true;
  begin_span();
  pass();
}

void BucketScheduler::begin_span() {
  span_.reset();
  if (in_backward_ && DeviceTrace::current() && static_cast<std::size_t>(next_) < missing_.size())
    span_.emplace(TraceLane::kDeviceCompute, "backward", "bucket " + std::to_string(next_));
}

void BucketScheduler::end_backward() {
  for (std::size_t b = static_cast<std::size_t>(next_); b < missing_.size(); ++b) {
    if (missing_[b] == 0) continue;
    for (const BucketSlot& slot : plan_.buckets[b].slots) {
      Parameter& parameter = *slot.parameter;
      if (seen_[static_cast<std::size_t>(parameter.index)]) continue;
      if (!allow_unused_) {
        fail(ExitCode::kUsage, "scheduler", {.step = step_, .bucket = static_cast<int>(b)},
             "step {}: parameter '{}' got no gradient; remove it from the model, or set "
             "\"unused_parameters\": \"allow\" to count it as zero",
             step_, parameter.name);
      }
      buckets_[b].hold_gradients();
      parameter.grad.backend().fill(parameter.grad, 0.0);
      --missing_[b];
    }
  }
  hand_over();
  named(
      "algorithm", [&] { return place(-1); }, [&] { algorithm_.backward_done(); });
}

void BucketScheduler::hand_over() {
  while (static_cast<std::size_t>(next_) < missing_.size() &&
         missing_[static_cast<std::size_t>(next_)] == 0) {
    span_.reset();
    note_flight(FlightEvent::kReady, {step_, next_, -1});
    const int bucket = next_++;
    named(
        "algorithm", [&] { return place(bucket); }, [&] { algorithm_.bucket_ready(bucket); });
    for (; dropped_ < next_ && algorithm_.gradients_consumed(dropped_); ++dropped_)
      buckets_[static_cast<std::size_t>(dropped_)].drop_gradients();
    begin_span();
  }
}

}  // namespace starling
