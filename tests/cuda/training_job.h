#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/training/config/plugins.h"
#include "apps/training/tasks/training_pass.h"
#include "comm/algorithm.h"
#include "comm/bucket.h"
#include "comm/scheduler.h"
#include "comm/transport.h"
#include "core/autograd.h"
#include "core/config.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/philox.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"
#include "topology/topology.h"

namespace starling::tests {

inline constexpr const char* kNet = R"({"type": "sequential", "num_classes": 5, "layers": [
  {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
  {"type": "max_pool2d", "kernel_size": 2},
  {"type": "residual", "layers": [{"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1}, {"type": "batch_norm"}]},
  {"type": "gelu"}, {"type": "global_avg_pool"}, {"type": "dropout", "p": 0.2}, {"type": "linear", "out_features": 5}]})";
/// Batch norms between convolutions, and at a residual sum.
inline constexpr const char* kNormNet = R"({"type": "sequential", "num_classes": 5, "layers": [
  {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
  {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
  {"type": "residual", "layers": [
    {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}]}, {"type": "relu"},
  {"type": "global_avg_pool"}, {"type": "linear", "out_features": 5}]})";
inline constexpr std::int64_t kBatch = 6;
inline const Shape kSample{8, 8, 3};

struct TrainingSettings {
  DType dtype = DType::kFloat32, compute = DType::kFloat32;
  double bucket_bytes = 200;
  bool in_backward = true;
  ClipSettings clip;
  bool check_overflow = false;
  const char* net = kNet;
  const char* algorithm = "gossip";
  nlohmann::json topology = {{"type", "ring"}};
  bool overlap = true, bf16_exchange = false;
  bool start_at_begin = false;
  /// True: steps are graphs from the step on in which all has come once (with start_at_begin, where
  /// there are several ranks).
  bool graphs = false;
  bool branches = true;  ///< of graphs, for gradients of weights
};

/// Settings in fp16, whose gradients are looked through for an overflow once all are there.
inline TrainingSettings in_fp16(TrainingSettings settings) {
  settings.in_backward = false;
  settings.compute = DType::kFloat16;
  settings.check_overflow = true;
  settings.net = kNormNet;
  return settings;
}

/// One rank that trains on numbers that depend on (rank, step) alone.
class TrainingJob {
 public:
  TrainingJob(Backend& backend, Transport& transport, const TrainingSettings& settings)
      : backend_(backend), transport_(transport), settings_(settings), tape_(backend) {
    register_builtins();
    ConfigSection section(parse_json(settings.net, "test"), "test");
    model_ = make_model(section, kSample);
    ConfigSection optimizer(nlohmann::json{{"weight_decay", 0.01}}, "optimizer");
    rule_ = optimizers().make("adamw", "optimizer.type", optimizer);
    if (transport.size() > 1 && std::string(settings.algorithm) == "gossip") {
      ConfigSection topology_section(settings.topology, "topology");
      topology_ = make_topology(topology_section, {transport.size(), transport.size()});
    }
    task_ = classification_task(kSample, model_->output_shape().back(), 0.1);
    const ShapeTrace trace =
        trace_shapes(*task_, *model_, {kBatch, settings.dtype, settings.compute});
    plan_ = plan_buckets(trace.ready_order, trace.unused, settings.dtype, settings.bucket_bytes);
    buckets_ = make_buckets(plan_, backend, settings.dtype, *rule_, false, settings.compute);
    model_->allocate_rest(backend, settings.dtype, settings.compute);
    model_->initialise(3);
    model_->refresh_low();
    mixer_ = mixers()
                 .make(settings.bf16_exchange ? "bf16" : "fp32", "sync.exchange")
                 .make(backend, transport, {});
    algorithm_ = make_algorithm(algorithm_of(settings.algorithm),
                                {.backend = backend,
                                 .transport = transport,
                                 .mixer = *mixer_,
                                 .rule = *rule_,
                                 .buckets = buckets_,
                                 .topology = topology_.get(),
                                 .clip = settings.clip,
                                 .in_backward = settings.in_backward,
                                 .overlap = settings.overlap,
                                 .check_overflow = settings.check_overflow,
                                 .start_at_begin = settings.start_at_begin});
    scheduler_ = std::make_unique<BucketScheduler>(plan_, buckets_, *algorithm_, false);
    tape_.set_ready_observer([this](Parameter& parameter) { scheduler_->ready(parameter); });
    tape_.branches().allow(settings.branches);
    images_ = Tensor(backend, kSample.with_batch(kBatch),
                     is_low_precision(settings.compute) ? settings.compute : settings.dtype);
    staged_ = Tensor(backend, images_.shape(), settings.dtype);
    labels_ = Tensor(backend, Shape{kBatch}, DType::kInt32);
    batch_ = {{{"image", images_}, {"label", labels_}}, kBatch, images_.dtype()};
  }
  ~TrainingJob() {
    try {
      backend_.synchronize(arrived_);  // the last loss is written into this object
    } catch (const Error&) {           // of a device that is lost
    }
  }
  TrainingJob(const TrainingJob&) = delete;
  TrainingJob& operator=(const TrainingJob&) = delete;

  void step() {
    load();
    const auto counter = static_cast<std::uint64_t>(step_ * transport_.size() + transport_.rank())
                         << 24;
    const StepInfo info{.step = step_,
                        .optimizer_step = step_ + 1,
                        .loss_scale = settings_.check_overflow ? 256.0 : 1.0,
                        .lr = 0.01};
    if (settings_.graphs && step_ > period()) {
      fetch(replay(info, counter));
    } else {
      issue(info, counter, [this](const Tensor& loss) { fetch(loss); });
    }
    ++step_;
  }
  /// Period of the steps' work, with settings.graphs.
  std::int64_t period() const {
    std::string why;
    const std::int64_t period = algorithm_->graph_period(why);
    require(period > 0, "test", "no graphs: {}", why);
    return period;
  }
  std::size_t graphs() const { return graphs_.size(); }
  std::int64_t steps() const { return step_; }  ///< so far

  void finish() {
    algorithm_->finish();
    backend_.synchronize();
  }

  /// Parameters in the model's order, then buffers.
  std::vector<double> numbers() {
    std::vector<double> result;
    const auto add = [&](const Tensor& tensor) {
      if (!is_floating(tensor.dtype())) return;
      const Tensor wide(backend_, tensor.shape(), DType::kFloat64);
      backend_.cast({tensor, wide});
      std::vector<double> part(static_cast<std::size_t>(tensor.elements()));
      backend_.copy_to_host(wide, part.data());
      result.insert(result.end(), part.begin(), part.end());
    };
    for (const Parameter* parameter : model_->parameters()) add(parameter->value);
    for (const ModelBuffer* buffer : model_->buffers()) add(buffer->value);
    return result;
  }
  std::size_t buckets() const { return buckets_.size(); }
  const Tensor& parameters_of(std::size_t bucket) const { return buckets_[bucket].parameters; }

 private:
  struct Captured {
    std::unique_ptr<Capture> capture;
    Tensor loss;
  };

  /// A step's work; `with_loss` is called between the two passes.
  template <class WithLoss>
  Tensor issue(const StepInfo& info, std::uint64_t counter, const WithLoss& with_loss) {
    if (settings_.start_at_begin) scheduler_->begin_step(info);
    Pass pass{backend_, &tape_, true, 11, counter};
    pass.loss_scale = info.loss_scale;
    const auto between = [&](const Variable& loss) {
      if (!settings_.start_at_begin) scheduler_->begin_step(info);
      with_loss(loss.value());
    };
    const Tensor loss = training_pass(*task_, *model_, batch_, pass, {.before_backward = between});
    scheduler_->end_backward();
    return loss;
  }

  const Tensor& replay(const StepInfo& info, std::uint64_t counter) {
    Captured& captured = graphs_[step_ % period()];
    const StepValues values{info.step, info.lr, info.optimizer_step, info.loss_scale, counter};
    if (!captured.capture) {
      captured.capture = Capture::begin(backend_, transport_, mixer_.get(), buckets_, values);
      require(captured.capture != nullptr, "test", "no graphs");
      captured.loss = issue(info, counter, [](const Tensor&) {});
      captured.capture->end();
    }
    captured.capture->launch(values);
    return captured.loss;
  }

  void fetch(const Tensor& loss) {
    backend_.synchronize(arrived_);  // the loss of the step before
    arrived_ = backend_.copy_to_host_later(loss, &loss_);
  }

  void load() {
    const auto seed = static_cast<std::uint64_t>(step_ * 100 + transport_.rank());
    std::vector<double> numbers(static_cast<std::size_t>(images_.elements()));
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = 2.0 * static_cast<double>(uniform_float(philox(seed, i, 5).v[0])) - 1.0;
    if (settings_.dtype == DType::kFloat64) {
      backend_.copy_from_host(numbers.data(), staged_);
    } else {
      const std::vector<float> narrow(numbers.begin(), numbers.end());
      backend_.copy_from_host(narrow.data(), staged_);
    }
    if (staged_.dtype() == images_.dtype()) {
      backend_.copy(staged_, images_);
    } else {
      backend_.cast({staged_, images_});
    }
    std::vector<std::int32_t> labels(kBatch);
    for (std::size_t i = 0; i < labels.size(); ++i)
      labels[i] = static_cast<std::int32_t>(philox(seed, i, 6).v[0] % 5);
    backend_.copy_from_host(labels.data(), labels_);
  }

  Backend& backend_;
  Transport& transport_;
  TrainingSettings settings_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<OptimizerRule> rule_;
  std::unique_ptr<Topology> topology_;
  BucketPlan plan_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Algorithm> algorithm_;
  std::unique_ptr<BucketScheduler> scheduler_;
  Tape tape_;
  std::unique_ptr<Task> task_;
  Tensor images_, staged_, labels_;
  Batch batch_;
  double loss_ = 0.0;
  Event arrived_;
  std::int64_t step_ = 0;
  std::map<std::int64_t, Captured> graphs_;
};

}  // namespace starling::tests
