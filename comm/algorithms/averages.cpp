#include "comm/algorithms/averages.h"

#include <algorithm>
#include <utility>

#include "comm/algorithms/builtin.h"
#include "comm/replica.h"
#include "core/error.h"
#include "kernels/optimizers/linear.h"

namespace starling {

StatesAt read_states(ConfigSection& config) {
  StatesAt states = StatesAt::kLocal;
  config.read(
      "states", states,
      {{"local", StatesAt::kLocal}, {"average", StatesAt::kAverage}, {"reset", StatesAt::kReset}},
      "the optimizer's states where ranks meet: each keeps its own, their mean, or zero");
  return states;
}

std::string fp16_fault(StatesAt states) {
  if (states != StatesAt::kReset) return {};
  return "states is reset, but in fp16 each rank counts its updates by itself; allowed: states "
         "local or average, or another precision";
}

Means::Means(const AlgorithmSite& site)
    : transport_(site.transport),
      share_(1.0 / site.transport.size()),
      sums_(site.buckets.size()),
      numbers_(site.buckets.size()),
      tickets_(site.buckets.size()) {
  for (const Bucket& bucket : site.buckets) {
    std::int64_t& most = most_.emplace_back(0);
    for (const Tensor& state : bucket.states) most = std::max(most, state.elements());
  }
}

void Means::start(int bucket, const Tensor& numbers, const StepInfo& info, Lane lane) {
  const auto b = static_cast<std::size_t>(bucket);
  numbers_[b] = numbers;
  if (transport_.size() == 1) return;
  if (!sums_[b])
    sums_[b] =
        Tensor(numbers.backend(), Shape{std::max(most_[b], numbers.elements())}, numbers.dtype());
  const StreamScope scope(numbers.backend(), StreamKind::kUpdate);  // where they were written
  tickets_[b] = transport_.start_sum(numbers, sums_[b].slice(0, Shape{numbers.elements()}),
                                     {info.step, bucket, info.step, lane});
}

Tensor Means::take(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  tickets_[b] = 0;
  Tensor own = std::exchange(numbers_[b], Tensor());
  return transport_.size() > 1 ? sums_[b].slice(0, Shape{own.elements()}) : own;
}

Averages::Averages(const AlgorithmSite& site, std::unique_ptr<Algorithm> inner, StatesAt states,
                   std::int64_t delay)
    : Algorithm(site),
      means_(site),
      outer_(site, 1.0, false),
      inner_(std::move(inner)),
      states_(states),
      delay_(delay),
      under_way_(site.buckets.size()) {
  require(states != StatesAt::kReset || !site.check_overflow, "algorithm",
          "states are reset though each rank counts its own updates");
  if (site.transport.size() > 1) site.transport.prepare({});
  mean_ = make_linear_rule(
      0, 0, [share = means_.share()](double) { return LinearTerms{.x = {.p = 0, .g = share}}; });
}

void Averages::begin(const StepInfo& info) {
  if (info.step == 0) first_step();
  info_ = info;
  if (reset_at_ > 0) info_.optimizer_step = info.step + 1 - reset_at_;
  inner_->begin(info_);
}

void Averages::bucket_ready(int bucket) {
  inner_->bucket_ready(bucket);
  if (inner_->updates_at_once()) start_if_due(bucket);
}

void Averages::backward_done() {
  inner_->backward_done();
  for (int b = 0; !inner_->updates_at_once() && b < buckets(); ++b) start_if_due(b);
  meet_buckets();
  if (!site_.overlap) settle_all();
}

void Averages::start_if_due(int b) {
  if (!starts(b, info_.step)) return;
  under_way_[static_cast<std::size_t>(b)] = true;
  start(b);
}

void Averages::settle_all() {
  for (int b = 0; delay_ > 0 && b < buckets(); ++b) settle(b);
}

void Averages::meet_buckets() {
  // All arrive before any is used: a rank that is lost meanwhile leaves each of the others with all
  // of the outer step or with nothing of it.
  bool met = false;
  for (int b = 0; b < buckets(); ++b) {
    if (!meets(b, info_.step)) continue;
    met = true;
    settle(b);
  }
  // So it is with the ranks of a replica together
  if (met && site_.replica)
    wait_by(0, [&] { site_.replica->barrier({info_.step, 0, info_.step}); });
  if (met) met_ = info_.step + 1;
  for (int b = 0; b < buckets(); ++b) {
    if (!meets(b, info_.step)) continue;
    under_way_[static_cast<std::size_t>(b)] = false;
    meet(b);
    for (std::size_t k = 0; states_ != StatesAt::kLocal && k < bucket(b).states.size(); ++k) {
      if (states_ == StatesAt::kAverage) {
        average_state(b, k);
      } else {
        const StreamScope scope(site_.backend, StreamKind::kUpdate);
        site_.backend.fill(bucket(b).states[k], 0.0);
      }
    }
  }
  if (!met) return;
  if (states_ == StatesAt::kReset) reset_at_ = info_.step + 1;
  outer_.join();
}

void Averages::finish() {
  inner_->finish();
  settle_all();  // what is under way is saved
  outer_.join();
}

void Averages::conclude() {
  finish();
  for (int b = 0; b < buckets(); ++b) {
    if (under_way_[static_cast<std::size_t>(b)]) meet(b);
  }
  outer_.join();
}

void Averages::resume(std::int64_t step) {
  for (std::int64_t t = step - 1; states_ == StatesAt::kReset && reset_at_ == 0 && t >= 0; --t) {
    if (meets(0, t)) reset_at_ = t + 1;
  }
  for (std::int64_t t = step - 1; met_ == 0 && t >= 0; --t) {
    for (int b = 0; b < buckets(); ++b) met_ = meets(b, t) ? t + 1 : met_;
  }
  for (int b = 0; b < buckets(); ++b) {
    for (std::int64_t t = std::max<std::int64_t>(0, step - delay_); t < step; ++t) {
      if (starts(b, t)) under_way_[static_cast<std::size_t>(b)] = true;
    }
  }
  inner_->resume(step);
}

void Averages::resume_after_loss(std::int64_t step) {
  resume(step);
  // With what the ranks that are left have trained meanwhile
  info_.step = step - 1;
  for (int b = 0; b < buckets(); ++b) {
    if (under_way_[static_cast<std::size_t>(b)]) start(b);
  }
}

Tensor Averages::wait_mean(int b) {
  if (const Ticket ticket = means_.ticket(b)) wait(ticket, b);
  return means_.take(b);
}

void Averages::apply(int b, const OptimizerRule& rule, std::vector<Tensor> states,
                     const Tensor& gradient, const Tensor& numbers) {
  outer_.update(b, info_, {},
                {.rule = &rule,
                 .states = std::move(states),
                 .numbers = numbers,
                 .gradient = gradient,
                 .always = true});
}

void Averages::take_mean(int b, const Tensor& numbers) {
  const Tensor sum = wait_mean(b);
  if (site_.transport.size() > 1) take_mean_of(b, sum, numbers);
}

void Averages::take_mean_of(int b, const Tensor& sum, const Tensor& numbers) {
  apply(b, *mean_, {}, sum, numbers);
}

void Averages::average_state(int b, std::size_t k) {
  outer_.join();  // the sum's buffer is used again
  means_.start(b, bucket(b).states[k], info_);
  take_mean(b, bucket(b).states[k]);
}

namespace {

class AfterWarmup final : public Algorithm {
 public:
  AfterWarmup(const AlgorithmSite& site, std::function<bool(const StepInfo&)> warms_up,
              std::unique_ptr<Algorithm> before, std::unique_ptr<Algorithm> after)
      : Algorithm(site),
        warms_up_(std::move(warms_up)),
        before_(std::move(before)),
        after_(std::move(after)),
        now_(before_.get()) {}
  void begin(const StepInfo& info) override {
    now_ = warms_up_(info) ? before_.get() : after_.get();
    now_->begin(info);
  }
  void bucket_ready(int bucket) override { now_->bucket_ready(bucket); }
  bool gradients_consumed(int bucket) const override { return now_->gradients_consumed(bucket); }
  bool updates_at_once() const override { return now_->updates_at_once(); }
  bool parameters_final(int bucket) const override { return now_->parameters_final(bucket); }
  void backward_done() override { now_->backward_done(); }
  void finish() override { now_->finish(); }
  void conclude() override { now_->conclude(); }
  void resume(std::int64_t step) override {
    before_->resume(step);
    after_->resume(step);
  }
  Tensor control() const override { return now_->control(); }
  double mean_weight() const override { return now_->mean_weight(); }
  double take_wait_seconds() override {
    return before_->take_wait_seconds() + after_->take_wait_seconds();
  }

 private:
  std::function<bool(const StepInfo&)> warms_up_;
  std::unique_ptr<Algorithm> before_, after_;
  Algorithm* now_;
};

}  // namespace

std::unique_ptr<Algorithm> after_warmup(const AlgorithmSite& site,
                                        std::function<bool(const StepInfo&)> warms_up,
                                        std::unique_ptr<Algorithm> after) {
  return std::make_unique<AfterWarmup>(site, std::move(warms_up), make_all_reduce(site),
                                       std::move(after));
}

std::unique_ptr<Algorithm> after_warmup(const AlgorithmSite& site, std::int64_t start,
                                        std::unique_ptr<Algorithm> after) {
  if (start == 0) return after;
  return after_warmup(
      site, [start](const StepInfo& info) { return info.step < start; }, std::move(after));
}

}  // namespace starling
