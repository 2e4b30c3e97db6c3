#include "apps/bench/training.h"

#include <nlohmann/json.hpp>

#include "apps/bench/support.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/operations/updates.h"
#include "core/random.h"

namespace starling {
namespace {

Tensor random_images(Backend& backend, const Shape& shape, DType dtype) {
  std::vector<double> numbers(static_cast<std::size_t>(shape.elements()));
  fill_random(Init::normal(1.0), 7, 0, shape.elements(), numbers.data());
  const std::vector<float> pixels(numbers.begin(), numbers.end());
  Tensor images(backend, shape, DType::kFloat32);
  backend.copy_from_host(pixels.data(), images);
  if (dtype == DType::kFloat32) return images;
  Tensor low(backend, shape, dtype);
  backend.cast({.x = images, .y = low});
  return low;
}

/// Integers 0 … classes - 1, cyclically.
Tensor labels_of(Backend& backend, const Shape& shape, std::int64_t classes) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % classes);
  Tensor labels(backend, shape, DType::kInt32);
  backend.copy_from_host(numbers.data(), labels);
  return labels;
}

}  // namespace

BenchTraining::BenchTraining(const StepBench& settings, Backend& backend, DType compute)
    : backend_(backend),
      model_(bench_model(settings)),
      rule_(bench_rule(settings.optimizer)),
      task_(bench_task(settings)),
      transport_(make_single_transport()),
      mixer_(transport_->make_mixer(backend)),
      topology_(bench_topology({}, 1)),
      tape_(backend),
      plain_(settings.plain),
      loss_scale_(compute == DType::kFloat16 ? 1024.0 : 1.0) {  // a typical scale of a real run
  const bool scaled = compute == DType::kFloat16;
  if (plain_ && scaled)
    fail(ExitCode::kUsage, "bench",
         "plain: is for fp32 and bf16; fp16 looks for an overflow between the pass and the "
         "updates");
  const ShapeTrace trace =
      trace_shapes(*task_, *model_, {settings.batch, DType::kFloat32, compute});
  plan_ = plan_buckets(trace.ready_order, {}, DType::kFloat32, 25.0 * 1024 * 1024);
  buckets_ = make_buckets(plan_, backend, DType::kFloat32, *rule_, false, compute,
                          usual_gradient_memory(backend));
  model_->allocate_rest(backend, DType::kFloat32, compute);
  model_->initialise(1);
  model_->refresh_low();
  for (const Bucket& bucket : buckets_) {
    if (rule_->facts().measures_layers) layers_.push_back(update_layers(backend, *rule_, bucket));
  }
  algorithm_ = make_algorithm(algorithm_of({}), {.backend = backend,
                                                 .transport = *transport_,
                                                 .mixer = *mixer_,
                                                 .rule = *rule_,
                                                 .buckets = buckets_,
                                                 .topology = topology_.get(),
                                                 .in_backward = !scaled,
                                                 .check_overflow = scaled});
  scheduler_ = std::make_unique<BucketScheduler>(plan_, buckets_, *algorithm_, false);
  tape_.set_gradient_memory([this](Parameter& parameter) { scheduler_->begun(parameter); });
  if (!plain_)
    tape_.set_ready_observer([this](Parameter& parameter) { scheduler_->ready(parameter); });
  const Shape input = model_->input_shape().with_batch(settings.batch);
  batch_ = {{}, settings.batch, compute};
  if (settings.tokens > 0) {
    const Tensor tokens = labels_of(backend, input, settings.classes);
    batch_.tensors = {{"tokens", tokens}, {"targets", tokens}};
  } else {
    batch_.tensors = {{"image", random_images(backend, input, compute)},
                      {"label", labels_of(backend, {settings.batch}, settings.classes)}};
  }
}

Tensor BenchTraining::step() {
  if (!plain_)
    scheduler_->begin_step(
        {.step = done_, .optimizer_step = done_ + 1, .loss_scale = loss_scale_, .lr = 1e-3});
  Pass pass{.backend = backend_,
            .tape = &tape_,
            .training = true,
            .dropout_key = 1,
            .dropout_counter = static_cast<std::uint64_t>(done_) << 24,
            .loss_scale = loss_scale_};
  const Tensor loss = training_pass(*task_, *model_, batch_, pass);
  ++done_;
  plain_ ? update_all() : scheduler_->end_backward();
  return loss;
}

void BenchTraining::update_all() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    UpdateArgs args;
    args.x = bucket.parameters;
    args.x_out = bucket.parameters;
    args.gradient = bucket.gradients;
    args.decay = bucket.decay;
    args.states = bucket.states;
    args.low = bucket.low;
    if (!layers_.empty()) args.layers = layers_[b];
    args.lr = 1e-3;
    args.step = done_;
    run_update(backend_, *rule_, args);
  }
}

}  // namespace starling
