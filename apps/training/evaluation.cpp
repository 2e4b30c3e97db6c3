#include "apps/training/evaluation.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "apps/training/async_sum.h"
#include "comm/agreement.h"
#include "comm/averaging.h"
#include "core/autograd.h"
#include "core/error.h"
#include "core/operations/checker.h"
#include "core/operations/pointwise.h"
#include "core/trace.h"
#include "layers/functions.h"

namespace starling {
namespace {

/// What ranks tell each other while they test; they may be at different batches.
class Votes {
 public:
  Votes(Transport& transport, Backend& backend, const std::function<bool()>& stop)
      : transport_(transport), stop_(stop), sum_(transport, backend, 3) {}
  /// Whether the test ends here, on all ranks; waits for the others if it is `through` here.
  bool end(bool through, bool failed) {
    const bool stops = stop_ && stop_();
    std::vector<double> told{through ? 1.0 : 0.0, stops ? 1.0 : 0.0, failed ? 1.0 : 0.0};
    if (transport_.size() > 1) {
      if (!sum_.pending()) sum_.start(told, -1);
      if (!through && !sum_.ready()) return false;
      told = sum_.take();
    }
    stopped = told[1] > 0.0;
    any_failed = told[2] > 0.0;
    return stopped || any_failed || told[0] == transport_.size();
  }
  bool stopped = false, any_failed = false;

 private:
  Transport& transport_;
  const std::function<bool()>& stop_;
  AsyncSum sum_;
};

/// The batch's outputs; of several views their weighted mean, in the format of losses.
TaskOutput outputs_of(const Task& task, Model& model, const Batch& first, EvaluationLoader& loader,
                      Pass& pass) {
  TaskOutput output = named("task", task.name(), [&] { return task.predict(model, first, pass); });
  const std::vector<TestView>& views = loader.views();
  if (views.size() == 1) return output;
  const Tensor of_first = output.outputs.value();
  const DType wide = wide_of(of_first.dtype());
  const Tensor mean(pass.backend, of_first.shape(), wide);
  for (std::size_t view = 0; view < views.size(); ++view) {
    if (view > 0) output = task.predict(model, loader.shown(view), pass);
    pass.backend.weighted_sum(
        {.in = {functions::in_format(output.outputs.value(), wide, pass.backend)},
         .weight = {views[view].weight},
         .terms = 1,
         .out = mean,
         .accumulate = view > 0});
  }
  output.outputs = Variable(mean);
  return output;
}

}  // namespace

EvaluationResult evaluate(const Task& task, Model& model, EvaluationLoader& loader,
                          Backend& backend, Transport& transport, bool confusion,
                          const std::function<bool()>& stop, const EachOutput& each) {
  const TraceSpan span("evaluate");
  std::vector<Tensor> totals;
  for (const auto& metric : task.metrics()) {
    totals.emplace_back(backend, Shape{metric->sums()}, DType::kFloat64);
    backend.fill(totals.back(), 0.0);
  }
  std::optional<ConfusionCounter> confusions;
  if (confusion) confusions.emplace(backend, model.output_shape().back());
  double rows = 0.0, samples = 0.0;
  bool through = false;
  std::exception_ptr failure;  // of this rank's part of the test set, which the others must hear of
  Votes votes(transport, backend, stop);
  while (!votes.end(through, failure != nullptr)) {
    try {
      const Batch* batch = through ? nullptr : loader.next();
      through = !batch;
      if (through) continue;
      Pass pass{backend};
      const auto samples_now = static_cast<double>(batch->samples);
      const TaskOutput output = outputs_of(task, model, *batch, loader, pass);
      TaskOutput scores;  // computed once, if a metric needs them
      for (std::size_t m = 0; m < task.metrics().size(); ++m) {
        const Metric& metric = *task.metrics()[m];
        const bool hidden = output.head && !metric.takes_head();
        if (hidden && !scores.targets)
          scores = {functions::linear(output.outputs, *output.head, nullptr, pass), output.targets};
        named("metric", "", [&] { metric.add(task, hidden ? scores : output, totals[m], pass); });
      }
      if (confusions) confusions->add(output);
      if (each) each(output, loader.samples());
      rows += static_cast<double>(output.outputs.shape()[0]);
      samples += samples_now;
    } catch (const Error& error) {
      // Not an error of data: this rank cannot continue, even to inform others.
      if (error.code() != ExitCode::kUsage) throw;
      failure = std::current_exception();
      through = true;
    }
  }
  if (votes.any_failed) {
    on_all_ranks(transport, [&] {
      if (failure) std::rethrow_exception(failure);
    });
  }
  EvaluationResult result;
  result.stopped = votes.stopped;
  if (result.stopped) return result;
  std::vector<double> sums;
  for (const Tensor& total : totals) {
    sums.resize(sums.size() + static_cast<std::size_t>(total.elements()));
    backend.copy_to_host(total, sums.data() + sums.size() - total.elements());
  }
  sums.insert(sums.end(), {static_cast<double>(loader.left_out()), rows, samples});
  transport.world().sum(sums.data(), sums.size());
  result.samples = static_cast<std::int64_t>(sums.back());
  result.left_out = static_cast<std::int64_t>(sums[sums.size() - 3]);
  if (result.samples == 0 && result.left_out > 0) {
    fail_on_all_ranks(ExitCode::kUsage, "data", {}, "none of the {} test samples can be read",
                      result.left_out);
  }
  std::span<const double> rest(sums);
  for (const auto& metric : task.metrics()) {
    const auto own = static_cast<std::size_t>(metric->sums());
    for (MetricValue& value : metric->values(rest.first(own), sums[sums.size() - 2]))
      result.values.push_back(std::move(value));
    rest = rest.subspan(own);
  }
  if (!confusions) return result;
  result.confusion = confusions->total(transport.world());
  for (MetricValue& value : class_means(result.confusion)) {
    const auto same = [&](const MetricValue& other) { return other.name == value.name; };
    if (std::ranges::none_of(result.values, same))  // a metric's own is its own
      result.values.push_back(std::move(value));
  }
  return result;
}

Tensor share_of(const Tensor& tensor, double weight) {
  if (weight == 1.0) return tensor;
  const Tensor share(tensor.backend(), tensor.shape(), tensor.dtype());
  tensor.backend().weighted_sum({.in = {tensor}, .weight = {weight}, .terms = 1, .out = share});
  return share;
}

MeanModelScope::MeanModelScope(Model& model, std::vector<Bucket>& buckets, Backend& backend,
                               Transport& transport, Replica* replica, double weight,
                               const EvaluatedModel& evaluated)
    : model_(model), transport_(transport), replica_(replica) {
  keep_own();
  bucket_consensus_.assign(buckets.size(), 0.0);
  const bool of_state = evaluated.state >= 0;
  std::vector<Tensor> values, states;
  for (const Bucket& bucket : buckets) values.push_back(bucket.parameters);
  if (alone() && !of_state) {
    give_values(buckets, values);
    average_buffers();
    return;
  }
  for (const Bucket& bucket : buckets) {
    if (!of_state) continue;
    const Tensor& state = bucket.states[static_cast<std::size_t>(evaluated.state)];
    states.push_back(alone() && !bucket.divided ? whole_in(replica, bucket, state) : state);
  }
  if (!alone()) {
    values = mean_of(buckets, values, weight);
    const ConsensusDistance distance = starling::consensus_distance(
        replica ? replica->between() : transport, backend, buckets, values, &transport);
    consensus_ = distance.total;
    bucket_consensus_ = distance.per_bucket;
    states = mean_of(buckets, states, 1.0);
  }
  for (std::size_t b = 0; b < states.size(); ++b) {
    const bool divided = buckets[b].divided;
    const Tensor sum = divided ? allocate_in(replica, backend, values[b].shape(), values[b].dtype(),
                                             *buckets[b].own)
                               : Tensor(backend, values[b].shape(), values[b].dtype());
    const auto used = [&](const Tensor& whole) {
      return divided ? buckets[b].own_part(whole) : whole;
    };
    backend.weighted_sum({.in = {used(values[b]), used(states[b])},
                          .weight = {1.0, evaluated.weight},
                          .terms = 2,
                          .out = used(sum)});
    values[b] = sum;
  }
  show(buckets, values, backend);
  average_buffers();
}

MeanModelScope::MeanModelScope(Model& model, const std::vector<Bucket>& buckets, Backend& backend,
                               Transport& transport, Replica* replica, double weight,
                               const std::vector<Tensor>& parameters,
                               const std::vector<Tensor>& model_buffers)
    : model_(model), transport_(transport), replica_(replica) {
  keep_own();
  bucket_consensus_.assign(buckets.size(), 0.0);
  std::vector<Tensor> values = parameters;
  if (alone()) {
    for (std::size_t b = 0; b < values.size(); ++b) {
      if (!buckets[b].divided) values[b] = whole_in(replica, buckets[b], values[b]);
    }
  } else {
    values = mean_of(buckets, values, weight);
  }
  show(buckets, values, backend);
  for (std::size_t k = 0; k < model_buffers.size(); ++k)
    model.buffers()[k]->value = model_buffers[k];
  average_buffers();
}

std::vector<Tensor> MeanModelScope::mean_of(const std::vector<Bucket>& buckets,
                                            const std::vector<Tensor>& values, double weight) {
  std::vector<Tensor> means, own, own_means;
  for (std::size_t b = 0; b < values.size(); ++b) {
    means.push_back(allocate_in(replica_, values[b].backend(), values[b].shape(), values[b].dtype(),
                                buckets[b].own.value_or(ElementRange{0, values[b].elements()})));
    own.push_back(share_of(buckets[b].own_part(values[b]), weight));
    own_means.push_back(buckets[b].own_part(means.back()));
  }
  mean_model(replica_ ? replica_->between() : transport_, own, own_means);
  if (!replica_) return means;
  replica_->barrier();
  for (std::size_t b = 0; b < values.size(); ++b) {
    if (!buckets[b].divided) means[b] = replica_->whole(buckets[b], means[b]);
  }
  return means;
}

void MeanModelScope::keep_own() {
  for (const Parameter* parameter : model_.parameters()) {
    own_parameters_.push_back(parameter->value);
    own_low_.push_back(parameter->low);
  }
  for (const ModelBuffer* buffer : model_.buffers()) own_buffers_.push_back(buffer->value);
}

void MeanModelScope::show(const std::vector<Bucket>& buckets, const std::vector<Tensor>& values,
                          Backend& backend) {
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const Bucket& bucket = buckets[b];
    Tensor low, vectors;
    if (bucket.low) low = Tensor(backend, values[b].shape(), bucket.low.dtype());
    if (bucket.vectors) vectors = Tensor(backend, bucket.vectors.shape(), bucket.vectors.dtype());
    if (bucket.divided) {
      replica_->show(bucket, values[b], low, vectors);
    } else if (low) {
      backend.cast({.x = values[b], .y = low});
    }
    view_numbers(bucket, values[b], low, vectors);
  }
  give_values(buckets, values);
}

void MeanModelScope::average_buffers() {
  if (transport_.size() == 1) return;
  std::vector<ModelBuffer*> averaged;
  std::vector<Tensor> buffers;
  for (ModelBuffer* buffer : model_.buffers()) {
    if (!is_floating(buffer->value.dtype())) continue;
    averaged.push_back(buffer);
    buffers.push_back(buffer->value);
  }
  const std::vector<Tensor> means = mean_model(transport_, buffers);
  for (std::size_t i = 0; i < averaged.size(); ++i) averaged[i]->value = means[i];
}

MeanModelScope::~MeanModelScope() {
  whole_.reset();
  for (std::size_t i = 0; i < own_parameters_.size(); ++i) {
    model_.parameters()[i]->value = own_parameters_[i];
    model_.parameters()[i]->low = own_low_[i];
  }
  for (std::size_t i = 0; i < own_buffers_.size(); ++i)
    model_.buffers()[i]->value = own_buffers_[i];
}

}  // namespace starling
