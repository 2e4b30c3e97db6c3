#include "apps/training/auto/auto_plan.h"

#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "apps/training/device/device.h"
#include "comm/agreement.h"
#include "comm/bucket.h"
#include "comm/planner/advice.h"
#include "comm/planner/measure_network.h"
#include "comm/replica.h"
#include "core/autograd.h"
#include "core/core_wait.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/operations/updates.h"
#include "core/quantity.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

/// What is chosen where measurement does not say otherwise.
nlohmann::json standard_algorithm(const TrainConfig& config) {
  return config.sync.auto_algorithm ? nlohmann::json{{"type", config.sync.algorithm.name}}
                                    : config.resolved["sync"]["algorithm"];
}

/// Makes what was chosen: `algorithm` and `topology`, which it may not need, as a config has them.
void apply(TrainConfig& config, const RankLayout& site, const nlohmann::json& algorithm,
           const nlohmann::json& topology, double bucket_mb) {
  nlohmann::json& sync = config.resolved["sync"];
  if (config.sync.auto_topology) {
    config.sync.algorithm =
        exchanged_by(algorithm_of(algorithm, &sync["algorithm"]), config.sync.mixer);
    if (config.sync.algorithm.topology == TopologyKind::kNone) {
      config.sync.topology_name.clear();
      sync.erase("topology");
    } else {
      ConfigSection section(topology, "sync.topology");
      config.sync.topology =
          make_topology(section, site.replicas(), config.sync.algorithm.topology);
      config.sync.topology_name = section.resolved().value("type", "");
      sync["topology"] = section.resolved();
    }
  }
  if (config.sync.auto_bucket) {
    config.sync.bucket_bytes = bucket_mb * kMebibyte;
    sync["bucket_mb"] = bucket_mb;
  }
  config.sync.auto_topology = config.sync.auto_bucket = false;
}

/// The slowest rank's, everywhere.
void agree(StepModel& step, World& world) {
  const double rate = step.matrix_flops_per_second;
  std::vector<double> values{step.forward, step.backward, rate > 0.0 ? 1.0 / rate : 0.0};
  for (const PlannedTensor& tensor : step.tensors) values.push_back(tensor.ready);
  world.max(values.data(), values.size());
  step.forward = values[0];
  step.backward = values[1];
  step.matrix_flops_per_second = values[2] > 0.0 ? 1.0 / values[2] : 0.0;
  for (std::size_t i = 0; i < step.tensors.size(); ++i) step.tensors[i].ready = values[i + 3];
}

using Clock = std::chrono::steady_clock;

constexpr int kPasses = 3;         // after one that warms up
constexpr double kLongPass = 2.0;  // seconds: one such pass says enough

struct PassTimes {
  double forward = 0.0, backward = 0.0;
  std::vector<double> ready;  ///< seconds into the backward pass, in the order of readiness
};

PassTimes time_pass(const TrainConfig& config, const Batch& batch, Backend& backend) {
  PassTimes times;
  Clock::time_point start = Clock::now();
  const auto lap = [&] {
    backend.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  Tape tape(backend);
  tape.set_gradient_memory([&](Parameter& parameter) {
    parameter.grad = Tensor(backend, parameter.shape, config.device.dtype);
  });
  tape.set_ready_observer([&](Parameter& parameter) {
    times.ready.push_back(lap());
    parameter.grad = Tensor();
  });
  Pass pass{.backend = backend,
            .tape = &tape,
            .training = true,
            .recompute = config.device.recompute.value_or(Pass::usual_recompute(backend.device()))};
  training_pass(*config.task, *config.model, batch, pass, {.before_backward = [&](const Variable&) {
    times.forward = lap();
    start = Clock::now();
  }});
  times.backward = lap();
  return times;
}

/// Flops a second of the work on the matrix that has the most of them; 0: no parameter has any.
double matrix_rate(const TrainConfig& config, Backend& backend) {
  const OptimizerRule* rule = nullptr;
  LayerExtent layer;
  double flops = 0.0;
  for (const Parameter* parameter : config.model->parameters()) {
    const double own = parameter->trainable ? matrix_flops(config, *parameter) : 0.0;
    if (own <= flops) continue;
    rule = &config.optimizer.rule_of(*parameter);
    layer = layer_of(*parameter);
    flops = own;
  }
  if (!rule) return 0.0;
  const auto numbers = [&](std::int64_t count) {
    Tensor tensor(backend, Shape{count}, config.device.dtype);
    // The norm is below 1, as a direction has
    backend.fill(tensor, 0.5 / std::sqrt(static_cast<double>(layer.rows * layer.columns)));
    return tensor;
  };
  UpdateArgs args{.x = numbers(layer.elements), .gradient = numbers(layer.elements)};
  args.x_out = args.x;
  for (std::size_t k = 0; k < rule->facts().states.size(); ++k)
    args.states.push_back(numbers(layer.elements));
  args.decay = Tensor(backend, Shape{layer.elements / kDecayBlock}, DType::kUInt8);
  backend.fill(args.decay, 0.0);
  const Tensor workspace = numbers(rule->workspace({layer}));
  double seconds = 0.0;
  for (int run = 0; run < 2 && seconds <= kLongPass; ++run) {  // the first one warms up
    backend.synchronize();
    const Clock::time_point start = Clock::now();
    rule->finish_matrix(backend, args, layer, workspace);
    backend.synchronize();
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return flops / std::max(seconds, 1e-9);
}

/// Memory for the model of trial passes, not more than training takes: gradients have theirs while
/// a pass needs it. `place`: of what a replica's ranks on CPUs have once.
void allocate_trial(const TrainConfig& config, Backend& backend,
                    const std::function<Tensor(const Shape&, DType)>& place) {
  const auto [dtype, compute] = std::pair{config.device.dtype, config.device.compute};
  const bool low = is_low_precision(compute),
             divided = low && config.sync.replica > 1 && backend.device() != DeviceType::kCpu;
  for (Parameter* parameter : config.model->parameters()) {
    if (!parameter->trainable) continue;
    if (low) parameter->low = place(parameter->shape, compute);
    if (divided && parameter->is_weight())
      backend.fill(parameter->low, 0.01);  // there is nothing to round it from
    else
      parameter->value = place(parameter->shape, dtype);
  }
  config.model->allocate_rest(backend, dtype, compute, place);
}

/// `writes`: also what is in allocate_trial()'s places.
void initialise_trial(const TrainConfig& config, bool writes) {
  config.model->initialise(config.seed, {}, [&](const Parameter& parameter) {
    const bool placed = parameter.trainable || parameter.in == Parameter::In::kBase;
    return parameter.value && (writes || !placed);
  });
  if (writes) config.model->refresh_low();
}

StepModel timed_step(const TrainConfig& config, const ShapeTrace& trace, Backend& backend);

/// time_passes() on all ranks, the slowest one's figures.
StepModel time_passes(TrainConfig& config, const RankLayout& site, const ShapeTrace& trace,
                      Backend& backend, Transport& transport) {
  StepModel step;
  if (site.replica > 1 && backend.device() == DeviceType::kCpu) {
    const auto replica =
        make_shared_replica(transport, site.replica, make_process_sharing(config.sync.timeout_s),
                            config.sync.timeout_s);
    allocate_trial(config, backend, [&](const Shape& shape, DType dtype) {
      return replica->allocate(backend, shape, dtype);
    });
    on_all_ranks(transport, [&] { initialise_trial(config, replica->place() == 0); });
    on_all_ranks(transport, [&] { step = timed_step(config, trace, backend); });
  } else {
    on_all_ranks(transport, [&] { step = time_passes(config, trace, backend); });
  }
  agree(step, transport);
  return step;
}

}  // namespace

std::string choose_by_measurement(TrainConfig& config, const RankLayout& site,
                                  const ShapeTrace& trace, Backend& backend, Transport& transport) {
  if (!config.sync.auto_topology && !config.sync.auto_bucket) return {};
  if (site.replicas().ranks == 1) {
    apply(config, site, standard_algorithm(config), {{"type", kUsualTopology}}, kUsualBucket);
    return {};
  }
  const StepModel step = time_passes(config, site, trace, backend, transport);
  MeasureSettings settings;
  settings.replica = site.replica;
  const int local_ranks = transport.world().local_size();
  const int threads = compute_threads(config.device, local_ranks);
  const auto host =
      open_backend(DeviceType::kCpu, backend.device() == DeviceType::kCpu ? threads : 1);
  settings.spare_cores = cores_of_rank(local_ranks) > threads;
  settings.direct = config.sync.transport.reads_parameters && !config.sync.mixer.encodes &&
                    backend.device() == DeviceType::kCpu;
  const NetworkModel network = measure_network(transport, *host, settings);
  for (const std::string& warning : network_warnings(network))
    if (transport.rank() == 0) log::warning("{}", warning);

  std::string decision, text;
  if (transport.rank() == 0) {
    const std::vector<double> sizes =
        config.sync.auto_bucket ? usual_bucket_sizes()
                                : std::vector<double>{config.sync.bucket_bytes / kMebibyte};
    Advice advice;
    if (config.sync.auto_topology) {
      advice = advise(network, step, sizes, &config.sync.algorithm);
    } else {
      advice = advise_for(config.sync.algorithm, config.sync.topology.get(),
                          config.sync.topology_name, network, step, sizes);
    }
    const PlannedChoice& choice = advice.choices[advice.best];
    text = fmt::format(
        "auto: {}, bucket_mb {}: predicted {} a step, {} of it waiting; computation alone {}\n",
        choice.label(), plain_number(choice.bucket_mb), quantity(choice.prediction.step, "s"),
        quantity(choice.prediction.exposed, "s"), quantity(advice.compute, "s"));
    if (config.sync.auto_topology) text += fmt::format("auto: {}\n", advice.reason);
    const std::string disturbed = disturbance_text(
        advice, "start again when it is idle, or name sync.topology and sync.bucket_mb");
    if (!disturbed.empty()) text += "auto: " + disturbed;
    nlohmann::json figures{{"algorithm", choice.algorithm},
                           {"topology", choice.label()},
                           {"bucket_mb", choice.bucket_mb},
                           {"predicted_step_ms", choice.prediction.step * 1e3},
                           {"predicted_exposed_ms", choice.prediction.exposed * 1e3},
                           {"compute_ms", advice.compute * 1e3},
                           {"network", nlohmann::json::parse(to_json(network))}};
    if (config.sync.auto_topology) figures["reason"] = advice.reason;
    decision = figures.dump();
  }
  decision = transport.world().all_gather(decision).front();
  config.sync.auto_figures = nlohmann::json::parse(decision);
  nlohmann::json algorithm = standard_algorithm(config);
  if (config.sync.auto_figures["algorithm"] != config.sync.algorithm.name)
    algorithm = {{"type", config.sync.auto_figures["algorithm"]}};
  apply(config, site, algorithm, {{"type", config.sync.auto_figures["topology"]}},
        config.sync.auto_figures["bucket_mb"].get<double>());
  return text;
}

void adopt_choice(TrainConfig& config, const RankLayout& site, const nlohmann::json& saved_config,
                  const std::string& source) {
  if (!config.sync.auto_topology && !config.sync.auto_bucket) return;
  const auto sync = saved_config.find("sync");
  if (sync == saved_config.end() || !sync->is_object() || !sync->contains("bucket_mb")) {
    fail(ExitCode::kUsage, "resume", {.file = source},
         "the checkpoint does not say which topology and bucket size its run had");
  }
  apply(config, site, sync->value("algorithm", nlohmann::json()),
        sync->value("topology", nlohmann::json()), sync->value("bucket_mb", kUsualBucket));
}

StepModel time_passes(TrainConfig& config, const ShapeTrace& trace, Backend& backend) {
  allocate_trial(config, backend,
                 [&](const Shape& shape, DType dtype) { return Tensor(backend, shape, dtype); });
  initialise_trial(config, true);
  return timed_step(config, trace, backend);
}

namespace {

/// Of a model that has memory, which it gives back.
StepModel timed_step(const TrainConfig& config, const ShapeTrace& trace, Backend& backend) {
  const CoreWait core_wait;
  std::vector<PassTimes> passes;
  {
    const Batch batch = empty_batch(config.task->tensors(), backend, config.length.batch_size,
                                    config.pass_shape().activations());
    for (const Batch::Named& named : batch.tensors)
      backend.fill(named.tensor, is_floating(named.tensor.dtype()) ? 0.5 : 0.0);
    PassTimes first = time_pass(config, batch, backend);
    if (first.forward + first.backward > kLongPass) passes.push_back(std::move(first));
    while (passes.size() < kPasses &&
           (passes.empty() || passes.front().forward + passes.front().backward <= kLongPass)) {
      passes.push_back(time_pass(config, batch, backend));
    }
  }
  config.model->drop_memory();

  std::ranges::sort(passes, [](const PassTimes& a, const PassTimes& b) {
    return a.forward + a.backward < b.forward + b.backward;
  });
  const PassTimes& middle = passes[passes.size() / 2];
  const auto groups = static_cast<double>(config.length.accumulate);
  StepModel step = untimed_step(config, trace);
  const auto whole = [](const PassTimes& pass) { return pass.forward + pass.backward; };
  step.noise =
      std::max(core_wait.share(), (whole(passes.back()) - whole(passes.front())) / whole(middle));
  step.matrix_flops_per_second = matrix_rate(config, backend);
  // All but the last micro-batch of a step are computation before the first gradient is ready.
  step.forward = middle.forward + (groups - 1.0) * (middle.forward + middle.backward);
  step.backward = middle.backward;
  for (std::size_t i = 0; i < std::min(step.tensors.size(), middle.ready.size()); ++i) {
    step.tensors[i].ready = std::min(middle.ready[i] / std::max(middle.backward, 1e-9), 1.0);
  }
  return step;
}

}  // namespace

}  // namespace starling
