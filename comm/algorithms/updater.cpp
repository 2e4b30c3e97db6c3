#include "comm/algorithms/updater.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "comm/replica.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/trace.h"
#include "kernels/optimizers/linear.h"

namespace starling {

std::optional<double> GradientRecord::norm(std::int64_t of_step) const {
  if (step != of_step) return std::nullopt;
  std::vector<double> sums(static_cast<std::size_t>(squares.elements()));
  squares.backend().copy_to_host(squares, sums.data());
  double total = std::accumulate(sums.begin(), sums.end(), 0.0);
  if (replica) replica->sum(&total, 1, {.step = of_step});
  return scale * std::sqrt(total);
}

GradientNorm::GradientNorm(Backend& backend, const std::vector<Bucket>& buckets, Replica* replica)
    : backend_(backend), buckets_(buckets), replica_(replica) {
  std::int64_t count = 0;
  for (const Bucket& bucket : buckets) {
    first_.push_back(count);
    count += replica ? 1 : static_cast<std::int64_t>(bucket.layout->slots.size());
  }
  first_.push_back(count);
  totals_ = Tensor(backend, Shape{std::max<std::int64_t>(count, 1)}, DType::kFloat64);
}

void GradientNorm::control(int begin, int end, double scale, double clip, bool check_finite,
                           const Tensor& control) {
  const std::int64_t first = first_[static_cast<std::size_t>(begin)];
  backend_.gradient_control({totals_, first, first_[static_cast<std::size_t>(end)] - first, scale,
                             clip, check_finite, control});
}

void GradientNorm::measure(int begin, int end) {
  std::vector<Tensor> gradients;
  for (int b = begin; b < end; ++b) {
    const Bucket& bucket = buckets_[static_cast<std::size_t>(b)];
    if (replica_) gradients.push_back(bucket.gradients);  // a part, whose padding is 0
    for (std::size_t k = 0; !replica_ && k < bucket.layout->slots.size(); ++k) {
      const BucketSlot& slot = bucket.layout->slots[k];
      gradients.push_back(bucket.gradients.slice(slot.offset, Shape{slot.elements}));
    }
  }
  const std::int64_t first = first_[static_cast<std::size_t>(begin)];
  backend_.squared_norms({gradients, totals_, first});
  if (replica_)
    replica_->sum(totals_.slice(first, Shape{first_[static_cast<std::size_t>(end)] - first}));
}

Updater::Updater(const AlgorithmSite& site, double gradient_share, bool by_rule)
    : site_(site),
      gradient_share_(gradient_share),
      norm_(site.backend, site.buckets, site.replica) {
  for (std::size_t b = 0; b < site.buckets.size(); ++b)
    names_.push_back("bucket " + std::to_string(b));
  if (by_rule && site.rule.facts().measures_layers) make_layers();
  std::int64_t most = 0;
  for (const Bucket& bucket : site.buckets) {
    for (const Tensor& state : bucket.states) {
      if (state.elements() != bucket.parameters.elements()) most = std::max(most, state.elements());
    }
  }
  if (most > 0) {
    no_decay_ = Tensor(site.backend, Shape{most / kDecayBlock}, DType::kUInt8);
    site.backend.fill(no_decay_, 0.0);
  }
  std::int64_t parts = 0;
  for (const Bucket& bucket : site.buckets) {
    first_part_.push_back(parts);
    parts += static_cast<std::int64_t>(std::max<std::size_t>(bucket.runs.size(), 1));
  }
  if (site.gradients && !needs_all_gradients() && !clips_buckets() &&
      site.backend.device() == DeviceType::kCpu) {
    squares_ = Tensor(site.backend, Shape{parts}, DType::kFloat64);
    site.backend.fill(squares_, 0.0);
  }
  if (needs_all_gradients()) global_ = Tensor(site.backend, Shape{2}, DType::kFloat64);
  if (clips_buckets()) of_bucket_ = Tensor(site.backend, Shape{2}, DType::kFloat64);
  if (!site.check_overflow) return;
  skip_ = Tensor(site.backend, Shape{2}, DType::kFloat64);
  site.backend.fill(skip_, 1.0);
}

void Updater::make_layers() {
  const auto rule_of = [&](const BucketRun& run) -> const OptimizerRule& {
    return *site_.groups[run.group].rule;
  };
  std::int64_t most = 0;
  for (const Bucket& bucket : site_.buckets) {
    if (bucket.runs.empty()) most = std::max(most, site_.rule.workspace(layers_in(bucket)));
    for (const BucketRun& run : bucket.runs)
      most = std::max(most, rule_of(run).workspace(layers_in(bucket, run)));
  }
  // One for all: updates come one after another.
  const Tensor workspace =
      most > 0 ? Tensor(site_.backend, Shape{most}, site_.buckets[0].parameters.dtype()) : Tensor();
  for (const Bucket& bucket : site_.buckets) {
    std::vector<UpdateLayers>& layers = layers_.emplace_back();
    if (bucket.runs.empty())
      layers.push_back(update_layers(site_.backend, site_.rule, bucket, {}, workspace));
    for (const BucketRun& run : bucket.runs)
      layers.push_back(update_layers(site_.backend, rule_of(run), bucket, run, workspace));
  }
}

Tensor Updater::decay_of(const Bucket& bucket, std::int64_t elements) {
  if (elements == bucket.parameters.elements()) return bucket.decay;
  require(no_decay_ && elements <= no_decay_.elements() * kDecayBlock, "update",
          "{} numbers beside a bucket of {}", elements, bucket.parameters.elements());
  return no_decay_.slice(0, Shape{elements / kDecayBlock});
}

void Updater::measure_all(const StepInfo& info) {
  const int buckets = static_cast<int>(site_.buckets.size());
  norm_.measure(0, buckets);
  note_squares(norm_.totals(), info, nullptr);
  norm_.control(0, buckets, scale(info), clips_globally() ? site_.clip.norm : 0.0,
                site_.check_overflow, global_);
  skip_is_known_ = false;
}

Tensor Updater::control_of(int bucket, const StepInfo& info, const UpdateWork& work) {
  if (!work.gradient) return control_of(bucket, info);
  if (work.control) return work.control;
  if (work.always || !skip_) return {};
  if (!std::exchange(skip_is_known_, true))
    site_.backend.copy(global_.slice(1, Shape{1}), skip_.slice(1, Shape{1}));
  return skip_;
}

Tensor Updater::control_of(int bucket, const StepInfo& info) {
  if (!clips_buckets()) return global_;
  // Every bucket's squares are known already where an overflow was looked for, and one bucket's
  // overflow skips them all.
  if (!site_.check_overflow) norm_.measure(bucket, bucket + 1);
  note_squares(norm_.totals(), info, nullptr);
  norm_.control(bucket, bucket + 1, scale(info), site_.clip.norm, false, of_bucket_);
  if (site_.check_overflow)
    site_.backend.copy(global_.slice(1, Shape{1}), of_bucket_.slice(1, Shape{1}));
  return of_bucket_;
}

void Updater::note_squares(const Tensor& squares, const StepInfo& info, Replica* replica) {
  if (!site_.gradients) return;
  site_.gradients->squares = squares;
  site_.gradients->scale = scale(info);
  site_.gradients->step = info.step;
  site_.gradients->replica = replica;
}

Tensor Updater::squares_of(int bucket, std::size_t run, const StepInfo& info) {
  if (!squares_ || !site_.gradients->wanted) return {};
  note_squares(squares_, info, site_.replica);
  return squares_.slice(
      first_part_[static_cast<std::size_t>(bucket)] + static_cast<std::int64_t>(run), Shape{1});
}

void Updater::update(int bucket, const StepInfo& info, const Mix& mix, const UpdateWork& work) {
  const TraceSpan span("update", names_[static_cast<std::size_t>(bucket)], TraceLane::kUpdate);
  require(info.loss_scale > 0.0, "update", "step {} has the loss scale {}", info.step,
          info.loss_scale);
  Backend& backend = site_.backend;
  Bucket& b = site_.buckets[static_cast<std::size_t>(bucket)];
  const Event gradients = backend.record();
  const StreamScope scope(backend, StreamKind::kUpdate);
  backend.wait(gradients);
  const DeviceSpan device_span(TraceLane::kDeviceUpdate, "update",
                               names_[static_cast<std::size_t>(bucket)]);
  UpdateArgs& args = args_;
  args.x = work.numbers ? work.numbers : b.parameters;
  args.x_out = work.numbers ? work.numbers : b.target();
  args.gradient = work.gradient ? work.gradient : b.gradients;
  args.decay = decay_of(b, args.gradient.elements());
  args.states = work.rule ? work.states : b.states;
  args.received = mix.received;
  args.weights = mix.weights;
  args.self_weight = mix.self_weight;
  args.sum_received = mix.sum;
  args.encoded = mix.encoded;
  args.gradient_scale = work.gradient ? 1.0 : scale(info);
  args.unscales = !work.gradient;
  args.control = control_of(bucket, info, work);
  args.low = !work.numbers || work.numbers.raw() == b.parameters.raw() ? b.low : Tensor();
  args.lr = info.lr;
  args.step = info.optimizer_step;
  const auto layers_of = [&](std::size_t run) {
    return layers_.empty() || work.rule ? UpdateLayers()
                                        : layers_[static_cast<std::size_t>(bucket)][run];
  };
  const auto squares = [&](std::size_t run) {
    return work.gradient ? Tensor() : squares_of(bucket, run, info);
  };
  args.squares = {};
  if (work.rule || b.runs.empty()) {
    args.layers = layers_of(0);
    args.squares = squares(0);
    run_update(backend, work.rule ? *work.rule : site_.rule, args);
  } else {
    for (std::size_t run = 0; run < b.runs.size(); ++run) {
      args.squares = squares(run);
      update_run(b.runs[run], layers_of(run), info);
    }
  }
  args.received.clear();  // may be other ranks' memory
  args.gradient = {};     // whose memory may be another bucket's next
  if (!work.numbers) b.flip();
  if (site_.after_update && !work.rule && !work.numbers) site_.after_update(bucket);
}

void Updater::mix(int bucket, const StepInfo& info, const Mix& mix, const Tensor& numbers) {
  static const std::unique_ptr<OptimizerRule> rule =
      make_linear_rule(0, 0, [](double) { return LinearTerms{}; });
  const Tensor& x = site_.buckets[static_cast<std::size_t>(bucket)].parameters;
  update(
      bucket, info, mix,
      {.rule = rule.get(), .numbers = numbers, .gradient = numbers ? numbers : x, .always = true});
}

void Updater::update_run(const BucketRun& run, const UpdateLayers& layers, const StepInfo& info) {
  const RuleGroup& group = site_.groups[run.group];
  const auto part = [&](const Tensor& tensor) {
    return tensor ? tensor.slice(run.first, Shape{run.elements}) : tensor;
  };
  UpdateArgs args = args_;
  for (Tensor* tensor : {&args.x, &args.x_out, &args.gradient, &args.low}) *tensor = part(*tensor);
  for (Tensor& state : args.states) state = state.slice(run.state_first, Shape{run.state_elements});
  if (args.encoded.code == Code::kBf16) {  // a part of such a message is one too
    const std::int64_t size = size_of(DType::kBFloat16);
    for (Tensor& received : args.received)
      received = received.slice(run.first * size, Shape{run.elements * size});
  } else if (args.encoded) {
    args.encoded.first = run.first;
    args.encoded.elements = args_.x.elements();
  } else {
    for (Tensor& received : args.received) received = part(received);
  }
  args.decay = args.decay.slice(run.first / kDecayBlock, Shape{run.elements / kDecayBlock});
  args.layers = layers;
  args.lr = info.step < group.until_step ? args_.lr * group.lr_scale : 0.0;
  run_update(site_.backend, *group.rule, args);
}

void Updater::join() {
  Event updated;
  {
    const StreamScope scope(site_.backend, StreamKind::kUpdate);
    updated = site_.backend.record();
  }
  site_.backend.wait(updated);
}

}  // namespace starling
