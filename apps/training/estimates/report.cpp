#include "apps/training/estimates/report.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <regex>
#include <sstream>

#include "apps/data/image_collate.h"
#include "apps/training/config/graph_plan.h"
#include "apps/training/estimates/floor.h"
#include "apps/training/estimates/memory.h"
#include "apps/training/estimates/step_model.h"
#include "apps/training/estimates/token_rates.h"
#include "comm/bucket.h"
#include "comm/exchange_plan.h"
#include "comm/growth.h"
#include "core/text.h"
#include "kernels/optimizer.h"

namespace starling {
namespace {

std::string topology_text(const TrainConfig& config, const SyncPhase& part,
                          const RankLayout& site) {
  if (!part.topology) return fmt::format("none ({})", part.algorithm.label());
  const TopologyReport report = analyse(*part.topology);
  std::string text = site.replica > 1
                         ? fmt::format("{}, {} of {} ranks, ", part.topology_name,
                                       counted(site.replicas().ranks, "replica"), site.replica)
                         : fmt::format("{}, {}, ", part.topology_name, counted(site.ranks, "rank"));
  text += part.topology->period() > 0 ? fmt::format("period {}, ", part.topology->period())
                                      : "no period, ";
  text += fmt::format("spectral gap: {:.6g}, ", report.spectral_gap);
  text += report.rounds_to_consensus
              ? "consensus: exact after " + counted(*report.rounds_to_consensus, "round")
              : "consensus: geometric";
  const double growth =
      growth_per_step(part.algorithm, *config.optimizer.rule, *part.topology).per_step;
  if (growth > 0.0) text += fmt::format(", disagreement × {:.4g} a step", growth);
  return text;
}

std::string topology_text(const TrainConfig& config, const RankLayout& site) {
  if (config.sync.auto_topology) return "auto (chosen at the start, by measurement)";
  return topology_text(config, config.sync, site);
}

/// "gossip over ring, 4 ranks, …", or "all-reduce" where ranks exchange by no topology.
std::string algorithm_text(const TrainConfig& config, std::size_t k, const RankLayout& site) {
  const SyncPhase& part = config.sync.phase(k);
  if (k == 0 && config.sync.auto_topology)
    return fmt::format("{} over {}", part.algorithm.name, topology_text(config, site));
  if (!part.topology)
    return site.replica > 1 ? fmt::format("{} between {} of {} ranks", part.algorithm.label(),
                                          counted(site.replicas().ranks, "replica"), site.replica)
                            : part.algorithm.label();
  return fmt::format("{} over {}", k == 0 ? part.algorithm.name : part.algorithm.label(),
                     topology_text(config, part, site));
}

/// How many samples `data.cache` keeps, and in how much of the host's memory.
std::string cache_text(const DataSettings& data, const RankLayout& site) {
  if (!data.cache) return {};
  const CachePlan plan = plan_cache(data.info, data.cache->limit_bytes(), site.ranks_per_node);
  const auto bytes = static_cast<double>(plan.bytes());
  return fmt::format("cache: {} of {} samples, {} each; {} of host memory a rank, {} a host\n",
                     std::min(plan.samples, plan.places * site.ranks_per_node), plan.samples,
                     size_text(static_cast<double>(plan.sample_bytes)), size_text(bytes),
                     size_text(bytes * site.ranks_per_node));
}

/// The components of a floor, in one line.
std::string floor_text(const Floor& floor, double count, const char* unit) {
  return fmt::format(
      "  operations as they are issued: {:.2f} ms a step, {:.0f} {}s/s a rank; {:.3g} MB of "
      "traffic for each ({:.2f} ms a step), arithmetic {:.2f} ms: bound by {}\n",
      1e3 * floor.seconds, count / floor.seconds, unit, 1e-6 * floor.bytes / count,
      1e3 * floor.memory_seconds, 1e3 * floor.arithmetic_seconds,
      floor.memory_bound() ? "memory" : "arithmetic");
}

/// The communicators that NCCL makes, and a rough figure of their memory.
std::string nccl_text(const SyncSettings& sync, const RankLayout& site) {
  if (site.ranks == 1 || !sync.transport.counts_communicators) return {};
  std::vector<int> groups(static_cast<std::size_t>(site.ranks));
  if (sync.topology) {
    for (const std::vector<int>& group : summed_groups(*sync.topology, false, sync.mixer.encodes)) {
      if (static_cast<int>(group.size()) == site.ranks) continue;
      for (const int rank : group) ++groups[static_cast<std::size_t>(rank)];
    }
  }
  const int most = *std::ranges::max_element(groups);
  constexpr double kBuffer = 4 << 20;  // NCCL_BUFFSIZE's default, as NCCL's manual has it
  constexpr int kNeighbours = 2;       // of a ring
  const int channels = sync.max_ctas > 0 ? sync.max_ctas : 16;
  const std::string of_groups =
      most == 0 ? std::string(" alone") : fmt::format(" and {} of groups", most);
  return fmt::format(
      "NCCL: {} a rank, the world's{}; at most about {} of device memory (each: {} "
      "channels{}, 2 neighbours in a ring, {} of NCCL_BUFFSIZE each): an estimate, not measured\n",
      counted(1 + most, "communicator"), of_groups,
      size_text((1 + most) * kNeighbours * channels * kBuffer), channels,
      sync.max_ctas > 0 ? " (sync.max_ctas)" : " assumed", size_text(kBuffer));
}

/// Which rank takes which GPU, and what a step takes there at least, which is `step_seconds` too.
std::string device_text(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace,
                        double elements, double& step_seconds) {
  std::string out =
      fmt::format("devices: a GPU for each of a host's {}: ", counted(site.ranks_per_node, "rank"));
  constexpr int kShown = 8;
  for (int rank = 0; rank < std::min(site.ranks_per_node, kShown); ++rank)
    out += fmt::format("{}local rank {} → GPU {}", rank == 0 ? "" : ", ", rank, rank);
  if (site.ranks_per_node > kShown) out += ", …";
  out += fmt::format("; precision {}\n", name_of(config.device.compute));
  out += nccl_text(config.sync, site);
  out += graph_text(config, site);

  const Ceilings& device = kCeilings[0];
  const double flops = device.flops(config.device.compute, config.device.tf32);
  const double received =
      config.sync.topology ? static_cast<double>(receive_buffers(config.sync.topology.get(), site))
                           : 0.0;
  const std::vector<OperationWork> work =
      count_step(config, trace.work, elements, received, device);
  const std::int64_t tokens = config.task->targets_of_sample();
  const auto count = static_cast<double>(config.length.batch_size * config.length.accumulate *
                                         std::max<std::int64_t>(tokens, 1));
  out +=
      fmt::format("floor on one {} (copy {:.1f} TB/s, {:.0f} TFLOP/s in {}), without exchanges:\n",
                  device.device, 1e-12 * device.bytes_per_second, 1e-12 * flops,
                  name_of(config.device.compute));
  const Floor floor = floor_of(work, flops, device.bytes_per_second);
  step_seconds = floor.seconds;
  return out + floor_text(floor, count, tokens > 0 ? "token" : "image");
}

std::string parameters_text(const Model& model) {
  const std::int64_t frozen = model.frozen_count();
  return fmt::format("{} parameters{}", model.parameter_count(),
                     frozen > 0 ? fmt::format(" and {} frozen ones", frozen) : "");
}

/// Bytes of a rank in a step, the mean over ranks and steps, and of a host.
struct RankTraffic {
  double sent = 0.0;                         ///< to other replicas, or ranks
  double gradients = 0.0, parameters = 0.0;  ///< that it gets from its replica's ranks
  double out_of_host = 0.0, inside_host = 0.0;
};

/// Nothing where it is not known.
std::optional<RankTraffic> rank_traffic(const TrainConfig& config, const RankLayout& site,
                                        const ShapeTrace& trace) {
  const RankLayout replicas = site.replicas();
  const auto between =
      step_traffic(config, trace, replicas, config.sync.algorithm, config.sync.topology.get());
  if (!between && replicas.ranks > 1) return std::nullopt;
  RankTraffic of;
  if (between) of.sent = between->all / site.ranks, of.out_of_host = between->out_of_host;
  double elements = 0.0;
  for (const BucketLayout& bucket : plan_buckets(config, trace).buckets)
    elements += static_cast<double>(bucket.elements);
  const double others = elements * (1.0 - 1.0 / site.replica);
  of.gradients = others * static_cast<double>(size_of(config.device.dtype));
  if (config.device.type == "cuda")
    of.parameters = others * static_cast<double>(size_of(config.device.compute));
  of.inside_host = std::max(
      0.0, site.ranks_per_node * (of.sent + of.gradients + of.parameters) - of.out_of_host);
  return of;
}

std::string exchanges_text(const TrainConfig& config, const RankLayout& site,
                           const ShapeTrace& trace) {
  const auto of = rank_traffic(config, site, trace);
  if (!of || site.ranks == 1) return {};
  std::string text = fmt::format("exchanges: a rank sends {}{} in a step", size_text(of->sent),
                                 site.replica > 1 ? " to other replicas" : "");
  if (site.replica > 1 && config.device.type == "cuda")
    text += fmt::format(", {} of gradients and {} of parameters to its own",
                        size_text(of->gradients), size_text(of->parameters));
  else if (site.replica > 1)
    text += fmt::format(", and reads {} of its own's gradients where they lie",
                        size_text(of->gradients));
  return text + fmt::format("; {} leave a host, {} go inside it\n", size_text(of->out_of_host),
                            size_text(of->inside_host));
}

/// The parameters of each of optimizer.groups; numbers in names are `*`, and how many are so.
std::string groups_text(const TrainConfig& config) {
  const std::vector<ParameterGroup>& groups = config.optimizer.groups;
  if (groups.empty()) return {};
  std::string text;
  for (std::size_t k = 0; k <= groups.size(); ++k) {
    const std::size_t group = (k + 1) % (groups.size() + 1);  // what is in none comes last
    std::vector<std::pair<std::string, int>> names;
    int count = 0;
    for (const Parameter* parameter : config.model->parameters()) {
      if (!parameter->trainable || config.optimizer.group_of(*parameter) != group) continue;
      const std::string name = std::regex_replace(parameter->name, std::regex("\\b[0-9]+\\b"), "*");
      const auto known =
          std::ranges::find_if(names, [&](const auto& one) { return one.first == name; });
      if (known == names.end())
        names.emplace_back(name, 1);
      else
        ++known->second;
      ++count;
    }
    text += fmt::format("  {}: {}", group == 0 ? "in no group" : groups[group - 1].name,
                        counted(count, "parameter"));
    for (const auto& [name, times] : names)
      text += fmt::format("{} {}{}", &name == &names.front().first ? ":" : ",", name,
                          times > 1 ? fmt::format(" ×{}", times) : "");
    text += '\n';
  }
  return "optimizer.groups:\n" + text;
}

/// How many are there at the end, the one that comes then included.
int kept_checkpoints(const TrainConfig& config, const RankLayout& site) {
  const RunLength length = run_length(config, site);
  const bool before = config.state.checkpoint.interval.first_due(0, length) < length.total_steps;
  return before ? config.state.checkpoint.keep : 1;
}

/// What of the schedule the run never comes to, or goes the other way.
std::string schedule_text(const TrainConfig& config, const RunLength& length) {
  // A plug-in's keys may have these names and hold something else
  const auto number = [](const nlohmann::json& section, const char* key) {
    const auto value = section.find(key);
    return value != section.end() && value->is_number() ? std::optional(value->get<double>())
                                                        : std::nullopt;
  };
  const nlohmann::json& schedule = config.resolved["schedule"];
  const auto steps = static_cast<double>(length.total_steps);
  std::string text;
  for (const char* key : {"warmup_steps", "decay_steps"}) {
    if (const auto count = number(schedule, key); count && *count >= steps)
      text += fmt::format(
          "schedule.{}: {:.0f} are not fewer than the run's {:.0f}: its rate never comes to "
          "optimizer.lr\n",
          key, *count, steps);
  }
  const auto warmup_epochs = number(schedule, "warmup_epochs");
  const double warmup = warmup_epochs && *warmup_epochs > 0.0
                            ? *warmup_epochs * static_cast<double>(length.steps_per_epoch)
                            : number(schedule, "warmup_steps").value_or(0.0);
  const double decay = number(schedule, "decay_steps").value_or(0.0);
  if (warmup_epochs && warmup >= steps)
    text += fmt::format(
        "schedule.warmup_epochs: {} are not fewer than the run's {:.4g}: its rate never comes to "
        "optimizer.lr\n",
        *warmup_epochs, steps / static_cast<double>(length.steps_per_epoch));
  if (warmup < steps && decay < steps && warmup + decay > steps)
    text += fmt::format(
        "schedule: a warm-up of {:.0f} and a decay of {:.0f} steps overlap in the run's {:.0f}: "
        "its rate never comes to optimizer.lr\n",
        warmup, decay, steps);
  const auto lr = number(config.resolved["optimizer"], "lr");
  for (const char* key : {"min_lr", "final_lr"}) {
    if (const auto least = number(schedule, key); least && lr && *least > *lr)
      text += fmt::format("schedule.{}: {} is above optimizer.lr, {}: the rate rises to it\n", key,
                          *least, *lr);
  }
  const double epochs = steps / static_cast<double>(length.steps_per_epoch);
  if (const auto size = number(schedule, "step_size"); size && *size >= epochs)
    text += fmt::format(
        "schedule.step_size: {} is not before the end of the run's {:.4g} epochs: the rate stays\n",
        *size, epochs);
  if (const auto& growth = images_of(config.data.info).growth;
      growth && static_cast<double>(growth->end_epoch) >= epochs)
    text += fmt::format(
        "data.progressive: end_epoch {} is not before the end of the run's {:.4g} epochs: images "
        "come to {} pixels\n",
        growth->end_epoch, epochs, growth->side(static_cast<std::int64_t>(std::ceil(epochs)) - 1));
  if (const auto count = number(config.resolved["optimizer"], "accum_iter");
      count && *count > steps)
    text += fmt::format("optimizer.accum_iter: {} are more than the run's {:.0f} steps\n", *count,
                        steps);
  if (config.state.lookahead && length.total_steps % config.state.lookahead->every != 0)
    text += fmt::format(
        "lookahead.every: the last {} of {} steps have no effect: the model ends as the slow "
        "weights, which are updated every {} steps\n",
        length.total_steps % config.state.lookahead->every, length.total_steps,
        config.state.lookahead->every);
  if (const auto all = schedule.find("milestones"); all != schedule.end() && all->is_array() &&
                                                    !all->empty() && all->front().is_number() &&
                                                    all->front() >= epochs)
    text +=
        fmt::format("schedule.milestones: {} is not before the end of the run's {:.4g} epochs\n",
                    all->front().get<double>(), epochs);
  return text;
}

/// Samples that no step of an epoch has, where they are the same ones in each or more than a few.
std::string left_out_text(const TrainConfig& config, const RankLayout& site,
                          const RunLength& length) {
  const std::int64_t samples = config.data.info.train_samples,
                     left = samples - length.steps_per_epoch * config.length.accumulate *
                                          config.length.batch_size * site.ranks;
  if (left <= 0 || (config.data.shuffle && left <= samples / 8) ||
      config.data.dirichlet_alpha > 0.0 || config.resolved["data"]["sampler"]["type"] != "shuffle")
    return {};
  return fmt::format(
      "data: {}{} of {} samples are in no step of an epoch: they make no batch for "
      "each rank\n",
      config.data.shuffle ? "" : "the last ", left, samples);
}

double file_bytes(std::int64_t elements, DType dtype) {
  return static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

}  // namespace

std::string run_headline(const TrainConfig& config, const RankLayout& site,
                         const ShapeTrace& trace) {
  const BucketPlan plan = plan_buckets(config, trace);
  return fmt::format("{} in {}; {}", parameters_text(*config.model),
                     counted(std::ssize(plan.buckets), "bucket"), algorithm_text(config, 0, site));
}

std::string period_text(const TrainConfig& config, const RankLayout& site) {
  const RunLength length = run_length(config, site);
  const std::int64_t steps = length.total_steps;
  std::string text = schedule_text(config, length) + left_out_text(config, site, length);
  for (std::size_t k = 0; k < config.sync.phases(); ++k) {
    const SyncPhase& phase = config.sync.phase(k);
    const bool last = k + 1 == config.sync.phases();
    const std::int64_t here =
        (last ? steps : config.sync.phase(k + 1).first_step(length)) - phase.first_step(length);
    for (const StepKey& key : phase.algorithm.steps.keys) {
      const std::int64_t left = here - key.after;
      if (!key.period || key.steps < 2 || left % key.steps == 0) continue;
      text += fmt::format(
          "{}.algorithm.{}: {} steps do not divide the {} {}{}: its last {} end without what comes "
          "after {}\n",
          SyncSettings::key(k), key.key, key.steps, config.sync.later.empty() ? "run's" : "part's",
          left, key.after > 0 ? fmt::format(" from step {} on", key.after) : "", left % key.steps,
          key.steps);
    }
  }
  return text;
}

std::string dry_run_report(const TrainConfig& config, const RankLayout& site,
                           const ShapeTrace& trace, const std::string& network) {
  const BucketPlan plan = plan_buckets(config, trace);
  const RunLength length = run_length(config, site);
  double elements = 0.0, largest = 0.0, step_seconds = 0.0;
  for (const BucketLayout& bucket : plan.buckets) {
    elements += static_cast<double>(bucket.elements);
    largest = std::max(largest, static_cast<double>(bucket.elements));
  }
  std::string out;
  if (config.device.type == "cuda") out = device_text(config, site, trace, elements, step_seconds);
  out += token_text(config, site, trace, elements, step_seconds);
  out += config.data.info.contents;
  out +=
      fmt::format("data: {} training and {} test samples of {}\n", config.data.info.train_samples,
                  config.data.info.test_samples, config.data.info.sample_text());
  out += cache_text(config.data, site);
  out += fmt::format("ranks: {} ({} on this host)\n", site.ranks, site.ranks_per_node);
  out += fmt::format("topology: {}\n", topology_text(config, site));
  for (std::size_t k = 1; k < config.sync.phases(); ++k) {
    out += fmt::format("from step {}: {}\n", config.sync.phase(k).first_step(length),
                       algorithm_text(config, k, site));
  }
  out += period_text(config, site);
  out += outer_steps_text(config, site.replicas(), trace, network, step_seconds);
  out += fmt::format("length: {} an epoch, {} in all\n", counted(length.steps_per_epoch, "update"),
                     length.total_steps);
  const std::int64_t frozen = config.model->frozen_count();
  out += fmt::format("parameters: {}{}\n", config.model->parameter_count(),
                     frozen > 0 ? fmt::format(", and {} that are not trained", frozen) : "");
  out += groups_text(config);
  out += fmt::format("buckets: {}, of {} at most\n", plan.buckets.size(),
                     size_text(largest * static_cast<double>(size_of(config.device.dtype))));
  out += exchanges_text(config, site, trace);
  out += disk_text(config, site, trace);
  out += memory_by_keys_text(config, site, trace);
  out += batch_text(config, site, trace);
  return out + memory_text(memory_need(config, site, trace));
}

std::string dry_run_json(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace,
                         const std::string& network) {
  const BucketPlan plan = plan_buckets(config, trace);
  const RunLength length = run_length(config, site);
  nlohmann::json buckets = nlohmann::json::array();
  for (const BucketLayout& bucket : plan.buckets) {
    buckets.push_back(
        {{"tensors", bucket.slots.size()},
         {"elements", bucket.elements},
         {"bytes", bucket.elements * static_cast<std::int64_t>(size_of(config.device.dtype))},
         {"first", bucket.slots.front().parameter->name},
         {"last", bucket.slots.back().parameter->name}});
  }
  const auto whole = [](double bytes) { return static_cast<std::int64_t>(bytes); };
  const MemoryNeed need = memory_need(config, site, trace);
  nlohmann::json memory{{"in_all", whole(need.total())}};
  for (auto [name, bytes] : need.parts()) {
    std::ranges::replace_if(
        name, [](char c) { return c == ' ' || c == '-'; }, '_');
    memory[name] = whole(bytes);
  }
  const RankTraffic traffic = rank_traffic(config, site, trace).value_or(RankTraffic());
  const DiskNeed disk = disk_need(config, site, trace);
  nlohmann::json text = nlohmann::json::array();
  std::istringstream lines(dry_run_report(config, site, trace, network));
  for (std::string line; std::getline(lines, line);) text.push_back(line);
  const nlohmann::json all{
      {"config", config.resolved},
      {"ranks", site.ranks},
      {"ranks_per_host", site.ranks_per_node},
      {"parameters", config.model->parameter_count()},
      {"frozen_parameters", config.model->frozen_count()},
      {"bytes_sent_in_a_step", whole(traffic.sent)},
      {"bytes_inside_a_replica_in_a_step", whole(traffic.gradients + traffic.parameters)},
      {"bytes_inside_a_host_in_a_step", whole(traffic.inside_host)},
      {"bytes_out_of_a_host_in_a_step", whole(traffic.out_of_host)},
      {"train_samples", config.data.info.train_samples},
      {"test_samples", config.data.info.test_samples},
      {"updates_per_epoch", length.steps_per_epoch},
      {"updates", length.total_steps},
      {"topology", topology_text(config, site)},
      {"buckets", std::move(buckets)},
      {"memory", std::move(memory)},
      {"disk",
       {{"checkpoint", whole(disk.checkpoint)},
        {"best", whole(disk.best)},
        {"model", whole(disk.model)},
        {"kept", whole(disk.kept)},
        {"while_writing", whole(disk.most)}}},
      {"text", std::move(text)}};
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

DiskNeed disk_need(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace) {
  const DType dtype = config.device.dtype;
  const OptimizerRule& rule = *config.optimizer.rule;
  double parameters = 0.0, buffers = 0.0, averaged = 0.0, states = 0.0, kept = 0.0;
  for (const Parameter* parameter : config.model->parameters()) {
    if (parameter->in != Parameter::In::kBase)
      parameters += file_bytes(parameter->shape.elements(), dtype);
  }
  for (const ModelBuffer* buffer : config.model->buffers()) {
    const bool floating = is_floating(buffer->dtype);
    const double bytes = file_bytes(buffer->shape.elements(), floating ? dtype : buffer->dtype);
    buffers += bytes;
    if (floating) averaged += bytes;
  }
  std::int64_t elements = 0;
  for (const BucketLayout& bucket : plan_buckets(config, trace).buckets) {
    for (const BucketSlot& slot : bucket.slots) {
      const std::int64_t own = rule.state_elements(layer_of(slot));
      states += file_bytes(own > 0 ? own : slot.elements, dtype);
      elements += slot.elements;
    }
  }
  states *= static_cast<double>(rule.facts().states.size());
  const double copies = (config.state.ema ? 1 : 0) + (config.state.lookahead ? 1 : 0),
               trained = file_bytes(elements, dtype);
  bool equal = true;
  for (std::size_t k = 0; k < config.sync.phases(); ++k) {
    const SyncPhase& part = config.sync.phase(k);
    equal = equal && part.algorithm.equality.always();
    double here = 0.0;
    for (const KeptState& state : part.algorithm.states) {
      here +=
          file_bytes(state.numbers > 0 ? state.numbers : elements, state.dtype.value_or(dtype)) *
          state.copies_on(part.topology.get(), 0);
    }
    kept = std::max(kept, here);
  }
  // What is equal on all ranks is written once: counts, all that replicas share, and statistics of
  // batch norm where ranks make them together. What an algorithm keeps is each rank's own.
  DiskNeed need;
  need.model = parameters + buffers;
  const int models = site.replicas().ranks;
  need.checkpoint = (equal ? 1 : models) * (parameters + states + copies * trained) +
                    (config.sync.synchronized_norms ? 1 : site.ranks) * (1.0 + copies) * averaged +
                    (buffers - averaged) + models * kept;
  if (config.state.checkpoint.best) need.best = need.checkpoint + need.model;
  need.kept = kept_checkpoints(config, site) * need.checkpoint + need.best +
              (config.state.ema ? 2.0 : 1.0) * need.model;
  need.most = need.kept + std::max(need.checkpoint, need.best);
  return need;
}

std::string disk_text(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace) {
  const DiskNeed need = disk_need(config, site, trace);
  const int kept = kept_checkpoints(config, site);
  return fmt::format(
      "disk: {} a checkpoint{}, {} with the {} kept{} and the model, {} at "
      "most while one is written\n",
      size_text(need.checkpoint), site.ranks > 1 ? fmt::format(" of {} ranks", site.ranks) : "",
      size_text(need.kept), kept == 1 ? "one that is" : fmt::format("{} that are", kept),
      need.best > 0.0 ? ", the best" : "", size_text(need.most));
}

}  // namespace starling
