#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/benches.h"
#include "apps/training/device/device.h"
#include "apps/training/estimates/floor.h"
#include "apps/training/tasks/training_pass.h"
#include "comm/algorithm.h"
#include "comm/bucket.h"
#include "comm/scheduler.h"
#include "core/autograd.h"
#include "core/config.h"
#include "core/console.h"
#include "core/error.h"
#include "core/forwarding_backend.h"
#include "core/host.h"
#include "core/operations/pointwise.h"
#include "core/random.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"
#include "topology/topology.h"

namespace starling {
namespace {

struct StepBench {
  std::string model = "resnet20";  ///< a type or a config object
  std::string optimizer = "adamw", stem = {}, device = "cpu", precision = "fp32";
  std::int64_t image = 32, classes = 10, steps = 20, batch = 128;
  std::int64_t tokens = 0;  ///< of a language model's sample; 0: samples are images
  int threads = 1;
  bool tf32 = false, cudnn_benchmark = false;  ///< for a GPU only
  bool json = false;
};

constexpr int kWarmUp = 4, kProfiledSteps = 3;

/// With `profiling` the host waits for each operation and records its time.
class ProfilingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::map<std::string, double> seconds;
  bool profiling = false;

 protected:
  void around(std::string_view name, const std::function<void()>& operation) override {
    if (!profiling) return operation();
    inner().synchronize();
    seconds[std::string(name)] += seconds_of([&] {
      operation();
      inner().synchronize();
    });
  }
};

std::unique_ptr<Model> make_model_of(const StepBench& settings) {
  const std::string& type = settings.model;
  nlohmann::json config =
      type.starts_with('{') ? parse_json(type, "--model") : nlohmann::json{{"type", type}};
  config["num_classes"] = settings.classes;
  if (!settings.stem.empty()) config["stem"] = settings.stem;
  if (type == "mlp") config["hidden"] = {512, 512};
  ConfigSection section(config, "bench");
  if (settings.tokens > 0) return make_model(section, Shape{settings.tokens});
  return make_model(section, Shape{settings.image, settings.image, 3});
}

std::unique_ptr<Task> make_task(const StepBench& settings) {
  if (settings.tokens == 0)
    return classification_task(Shape{settings.image, settings.image, 3}, settings.classes);
  const DatasetInfo data{
      .tensors = {{"tokens", {settings.tokens}, DType::kInt32, settings.classes},
                  {"targets", {settings.tokens}, DType::kInt32, settings.classes}},
      .all_count = true};
  const nlohmann::json none = nlohmann::json::object();
  ConfigSection keys(none, "task");
  auto task = tasks().make("language_model", "task.type", keys, data);
  task->set_loss(losses().make(task->usual_loss(), "loss.type", keys));
  return task;
}

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

/// Training on one rank with a batch in device memory: what a step costs without its input.
class ResidentTraining {
 public:
  ResidentTraining(const StepBench& settings, Backend& backend, DType compute)
      : backend_(backend),
        model_(make_model_of(settings)),
        rule_(make_bench_rule(settings.optimizer)),
        task_(make_task(settings)),
        transport_(make_single_transport()),
        mixer_(transport_->make_mixer(backend)),
        tape_(backend),
        loss_scale_(compute == DType::kFloat16 ? 1024.0 : 1.0) {  // a typical scale of a real run
    const nlohmann::json none = nlohmann::json::object();
    ConfigSection section(none, "bench");
    topology_ = make_topology(section, {1, 1});
    const ShapeTrace trace =
        trace_shapes(*task_, *model_, {settings.batch, DType::kFloat32, compute});
    work_ = trace.work;
    work_.push_back(count_update(*rule_, static_cast<double>(model_->parameter_count()), 0.0,
                                 DType::kFloat32, compute));
    std::vector<LayerExtent> extents;
    for (const Parameter* parameter : model_->parameters()) {
      if (parameter->trainable) extents.push_back(layer_of(*parameter));
    }
    const std::vector<OperationWork> matrices =
        count_matrices(*rule_, extents, DType::kFloat32, work_.back());
    work_.insert(work_.end(), matrices.begin(), matrices.end());

    plan_ = plan_buckets(trace.ready_order, {}, DType::kFloat32, 25.0 * 1024 * 1024);
    buckets_ = make_buckets(plan_, backend, DType::kFloat32, *rule_, false, compute,
                            usual_gradient_memory(backend));
    model_->allocate_rest(backend, DType::kFloat32, compute);
    model_->initialise(1);
    model_->refresh_low();
    const bool scaled = compute == DType::kFloat16;
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
  /// Issues a forward pass, a backward pass and the updates. Returns the loss.
  Tensor step() {
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
    scheduler_->end_backward();
    return loss;
  }
  /// What a step moves and computes.
  const std::vector<OperationWork>& work() const { return work_; }

 private:
  Backend& backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<OptimizerRule> rule_;
  std::unique_ptr<Task> task_;
  BucketPlan plan_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Topology> topology_;
  std::unique_ptr<Algorithm> algorithm_;
  std::unique_ptr<BucketScheduler> scheduler_;
  Tape tape_;
  Batch batch_;
  std::vector<OperationWork> work_;
  double loss_scale_;
  std::int64_t done_ = 0;
};

int bench_step(const StepBench& settings) {
  const bool gpu = settings.device == "cuda";
  BackendSettings how;
  how.threads = settings.threads;
  how.tf32 = settings.tf32;
  how.benchmark = settings.cudnn_benchmark;
  const std::unique_ptr<Backend> device =
      open_backend(gpu ? DeviceType::kCuda : DeviceType::kCpu, how);
  ProfilingBackend backend(*device);
  const DType compute = expected_compute(settings.precision, settings.device);
  ResidentTraining training(settings, backend, compute);
  for (int i = 0; i < kWarmUp; ++i) training.step();
  backend.synchronize();
  const std::uint64_t allocations = backend.memory_stats().system_allocations;
  const int window = gpu ? 5 : 1;  // a GPU's host works ahead
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, settings.steps / window); ++i) {
    seconds.push_back(seconds_of([&] {
                        for (int k = 0; k < window; ++k) training.step();
                        backend.synchronize();
                      }) /
                      window);
  }
  const std::uint64_t steady = backend.memory_stats().system_allocations - allocations,
                      peak = gpu ? backend.memory_stats().peak_in_use : peak_resident_bytes();
  backend.profiling = true;
  float loss = 0.0f;
  for (int i = 0; i < kProfiledSteps; ++i) backend.copy_to_host(training.step(), &loss);
  if (!std::isfinite(loss))
    fail(ExitCode::kDiverged, "bench", "the loss became {} within {} steps", loss,
         kWarmUp + settings.steps + kProfiledSteps);

  const double step_s = median(seconds);
  const std::optional<Ceilings> known = known_ceilings(device->description());
  const Ceilings ceilings = known ? *known
                            : gpu
                                ? measured_ceilings(*device, compute)
                                : measured_ceilings(*device, compute, std::int64_t{1} << 28, 1536);
  const double flops = ceilings.flops(compute, settings.tf32),
               floor_s = floor_of(training.work(), flops, ceilings.bytes_per_second).seconds;
  const char* unit = settings.tokens > 0 ? "token" : "image";
  const double per_second =
      static_cast<double>(settings.batch * std::max<std::int64_t>(1, settings.tokens)) / step_s;
  if (settings.json) {
    nlohmann::json result{
        {"model", settings.model},   {"precision", name_of(compute)},
        {"batch", settings.batch},   {"device", device->description()},
        {"step_ms", 1e3 * step_s},   {fmt::format("{}s_per_second", unit), per_second},
        {"floor_ms", 1e3 * floor_s}, {"steady_state_allocations", steady},
        {"peak_memory_bytes", peak}, {"loss", loss}};
    for (const auto& [name, time] : backend.seconds)
      result["operations_ms"][name] = 1e3 * time / kProfiledSteps;
    answer("{}\n", result.dump());
    return 0;
  }
  answer("{}, batch {}, {}, {}, on {}\n", settings.model, settings.batch, name_of(compute),
         settings.optimizer, device->description());
  answer(
      "step {:.2f} ms, {:.0f} {}s/s; floor {:.2f} ms as issued ({:.2f} of it reached) at {:.3g} "
      "TB/s and {:.3g} TFLOP/s, {}\n",
      1e3 * step_s, per_second, unit, 1e3 * floor_s, floor_s / step_s,
      1e-12 * ceilings.bytes_per_second, 1e-12 * flops,
      known ? fmt::format("an {}'s", known->device) : "measured here");
  answer("memory: {:.0f} MiB at the peak, {} allocations in steady state; loss {:.4f}\n",
         static_cast<double>(peak) / 1048576.0, steady, loss);
  for (const auto& [name, time] : backend.seconds)
    answer("  {:<26} {:8.3f} ms\n", name, 1e3 * time / kProfiledSteps);
  return 0;
}

}  // namespace

Command add_step_bench(CLI::App& app) {
  const auto given = std::make_shared<StepBench>();
  StepBench& settings = *given;
  CLI::App* command = app.add_subcommand(
      "step", "whole training steps of a model on one rank, against their floor");
  command->add_flag("--json", settings.json, "one JSON object");
  const auto choose = [&](const char* name, std::string& value, const char* doc,
                          const std::vector<std::string>& known) {
    command->add_option(name, value, doc)->capture_default_str()->check(CLI::IsMember(known));
  };
  command
      ->add_option("--model", settings.model,
                   "see starling-train --list models; or the model object of a config")
      ->capture_default_str();
  command->add_option("--stem", settings.stem, "cifar or imagenet, for resnet18 … resnet152");
  add_number(*command, "--image", settings.image, "image size in pixels", 1, 4096);
  add_number(*command, "--classes", settings.classes, "outputs", 2, 1 << 20);
  add_number(*command, "--tokens", settings.tokens,
             "of a sample of a language model; 0: samples are images", 0, 1 << 20);
  command->add_option("--optimizer", settings.optimizer, "see starling-train --list optimizers")
      ->capture_default_str();
  add_number(*command, "--steps", settings.steps, "steps to take the median of", 1, 100000);
  add_number(*command, "--batch", settings.batch, "samples of a step", 1, 1 << 20);
  choose("--precision", settings.precision, "of products and activations",
         {"fp32", "bf16", "fp16"});
  choose("--device", settings.device, "cpu or cuda", {"cpu", "cuda"});
  add_number(*command, "--threads", settings.threads, "compute threads of a rank", 1, 1024);
  command->add_flag("--tf32", settings.tf32, "fp32 products may use TF32, on a GPU");
  command->add_flag("--cudnn-benchmark", settings.cudnn_benchmark,
                    "time the candidates for each convolution, on a GPU");
  return {command, [given] { return bench_step(*given); }};
}

}  // namespace starling
