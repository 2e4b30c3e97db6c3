#include "apps/training/estimates/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <regex>
#include <sstream>

#include "apps/data/image_collate.h"
#include "apps/data/picture_pool.h"
#include "apps/training/config/graph_plan.h"
#include "apps/training/estimates/floor.h"
#include "apps/training/estimates/step_model.h"
#include "apps/training/estimates/token_rates.h"
#include "apps/training/tasks/metric.h"
#include "comm/bucket.h"
#include "comm/exchange_plan.h"
#include "comm/growth.h"
#include "core/host.h"
#include "core/operations/pointwise.h"
#include "core/operations/updates.h"
#include "core/text.h"
#include "kernels/optimizer.h"

namespace starling {
namespace {

double host_bytes(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace) {
  return site.ranks_per_node * memory_need(config, site, trace).total();
}

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

/// Receive buffers that a bucket needs: the most of any round and rank.
std::size_t receive_buffers(const Topology* topology, const RankLayout& site) {
  if (site.ranks == 1) return 0;
  if (!topology) return 1;
  const int ranks = std::min(topology->ranks(), 64);
  std::size_t most = 0;
  const std::int64_t rounds = topology->period() > 0 ? topology->period() : 16;
  for (std::int64_t k = 0; k < rounds; ++k) {
    const Round round = topology->round(k);
    for (int rank = 0; rank < ranks; ++rank)
      most = std::max(most, plan_exchange(round, rank).received());
  }
  return most;
}

std::string memory_text(const MemoryNeed& need) {
  std::vector<std::string> parts;
  for (const auto& [name, bytes] : need.parts()) {
    if (bytes > 0.0) parts.push_back(size_text(bytes) + " " + name);
  }
  return fmt::format("memory a rank: {}; {} in all\n", fmt::join(parts, ", "),
                     size_text(need.total()));
}

/// What activations take with each value of `recompute`; empty if the model has no blocks.
std::string recompute_text(const TrainConfig& config) {
  if (!config.model->has_blocks()) return {};
  std::vector<std::string> parts;
  for (const auto& [name, mode] : {std::pair{"none", Recompute::kNone},
                                   {"cheap", Recompute::kCheap},
                                   {"block", Recompute::kBlock}}) {
    PassShape shape = config.pass_shape();
    shape.recompute = mode;
    const ShapeTrace trace =
        trace_shapes(*config.task, *config.model, shape, config.optimizer.allow_unused);
    parts.push_back(
        fmt::format("{} {}", name, size_text(static_cast<double>(trace.activation_bytes))));
  }
  return fmt::format("activations by recompute: {}\n", fmt::join(parts, ", "));
}

/// Memory with each `sync.replica`, and the largest batch that fits with this one.
std::string host_memory_text(const TrainConfig& config, const RankLayout& site,
                             const ShapeTrace& trace) {
  const bool gpus = config.device.type == "cuda";
  std::string text;
  if (site.ranks_per_node > 1) {
    std::vector<std::string> parts;
    for (const int replica : replica_sizes(site)) {
      const RankLayout with{site.ranks, site.ranks_per_node, replica};
      const double bytes =
          gpus ? memory_need(config, with, trace).total() : host_bytes(config, with, trace);
      parts.push_back(fmt::format("{} {}", replica, size_text(bytes)));
    }
    text += fmt::format("memory of a {} by sync.replica: {}\n",
                        gpus ? "rank" : "host's " + counted(site.ranks_per_node, "rank"),
                        fmt::join(parts, ", "));
  }
  if (gpus) return text;
  const auto available = static_cast<double>(available_bytes());
  const MemoryNeed need = memory_need(config, site, trace);
  const double of_batch = need.activations + need.batches;
  const double room = available / site.ranks_per_node - (need.total() - of_batch);
  if (available > 0.0 && of_batch > 0.0)
    text += fmt::format(
        "of this host {} are free: batch_size fits up to {:.0f}\n", size_text(available),
        std::max(0.0, std::floor(static_cast<double>(config.length.batch_size) * room / of_batch)));
  return text;
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

/// What a rank sends in a step, the mean over ranks and steps; nothing where that is not known.
std::optional<double> sent_by_rank(const TrainConfig& config, const RankLayout& site,
                                   const ShapeTrace& trace) {
  const RankLayout replicas = site.replicas();
  const auto all =
      step_traffic(config, trace, replicas, config.sync.algorithm, config.sync.topology.get());
  return all ? std::optional(*all / site.ranks) : std::nullopt;
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

/// Whether a bucket's update, in the backward pass, gives its gradients' memory to the next one.
bool gradients_pass(const TrainConfig& config, int ranks) {
  const auto gives = [&](const AlgorithmPlan& plan) {
    const auto& exchanges = plan.cost.exchanges;
    return !exchanges.empty() && std::ranges::none_of(exchanges, [&](const auto& e) {
      const bool alone = ranks == 1 && e.hidden > 0;  // nothing to wait for
      return (e.what == PlannedExchange::kGradients && !alone) ||
             e.what == PlannedExchange::kGradientChunks;
    });
  };
  bool result = config.device.type != "cuda" && config.sync.in_backward &&
                config.length.accumulate == 1 &&
                (config.optimizer.clip.norm == 0.0 || config.optimizer.clip.per_bucket);
  for (std::size_t k = 0; k < config.sync.phases(); ++k)
    result = result && gives(config.sync.phase(k).algorithm);
  return result;
}

/// What stays of complete buckets when another begins, for the other ranks of a replica to read:
/// the last one, or that only if the other is the next (InReplica::make_room()).
enum class Waiting : std::uint8_t { kNone, kLast, kLastInOrder };

/// The most elements of buckets whose gradients are there at once, if so.
double passing_elements(const BucketPlan& plan, const ShapeTrace& trace, Waiting waiting) {
  std::vector<std::size_t> missing;
  for (const BucketLayout& bucket : plan.buckets) missing.push_back(bucket.slots.size());
  std::vector<bool> held(plan.buckets.size());
  double now = 0.0, most = 0.0;
  std::size_t ready = 0, done = 0, freed = 0;
  const auto bucket_of = [&](const Parameter* parameter) {
    return static_cast<std::size_t>(plan.bucket_of[static_cast<std::size_t>(parameter->index)]);
  };
  for (const ShapeTrace::Begun& begun : trace.begun) {
    for (; ready < begun.ready; ++ready) --missing[bucket_of(trace.ready_order[ready])];
    while (done < missing.size() && missing[done] == 0) ++done;
    const std::size_t b = bucket_of(begun.parameter);
    const bool one = waiting == Waiting::kLast || (waiting == Waiting::kLastInOrder && b == done);
    for (; freed + (one ? 1 : 0) < done && !held[b]; ++freed)
      now -= static_cast<double>(plan.buckets[freed].elements);
    if (!held[b]) now += static_cast<double>(plan.buckets[b].elements);
    held[b] = true;
    most = std::max(most, now);
  }
  return most;
}

/// How many are there at the end, the one that comes then included.
int kept_checkpoints(const TrainConfig& config, const RankLayout& site) {
  const RunLength length = run_length(config, site);
  const bool before = config.state.checkpoint.interval.first_due(0, length) < length.total_steps;
  return before ? config.state.checkpoint.keep : 1;
}

double file_bytes(std::int64_t elements, DType dtype) {
  return static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

}  // namespace

std::vector<std::pair<std::string, double>> MemoryNeed::parts() const {
  return {{"parameters", parameters},
          {"frozen parameters", frozen},
          {"gradients", gradients},
          {"optimizer state", states},
          {"receive buffers", receive},
          {"low-precision parameters", low},
          {"moving averages", average},
          {"algorithm state", sync},
          {"activations", activations},
          {"batches", batches},
          {"tests", tests},
          {"cached samples", cache}};
}

double MemoryNeed::total() const {
  double sum = 0.0;
  for (const auto& [name, bytes] : parts()) sum += bytes;
  return sum;
}

std::string size_text(double bytes) {
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024.0) break;
    bytes /= 1024.0;
    unit = next;
  }
  return unit[0] == 'B' ? fmt::format("{} B", static_cast<std::int64_t>(bytes))
                        : fmt::format("{:.1f} {}", bytes, unit);
}

std::string run_headline(const TrainConfig& config, const RankLayout& site,
                         const ShapeTrace& trace) {
  const BucketPlan plan = plan_buckets(config, trace);
  return fmt::format("{} in {}; {}", parameters_text(*config.model),
                     counted(std::ssize(plan.buckets), "bucket"), algorithm_text(config, 0, site));
}

std::string period_text(const TrainConfig& config, const RankLayout& site) {
  const RunLength length = run_length(config, site);
  const std::int64_t steps = length.total_steps;
  std::string text;
  if (const auto warmup = config.resolved["schedule"].value<std::int64_t>("warmup_steps", 0);
      warmup >= steps)
    text += fmt::format(
        "schedule.warmup_steps: {} are not fewer than the run's {}: its rate never comes to "
        "optimizer.lr\n",
        warmup, steps);
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
  if (const auto sent = sent_by_rank(config, site, trace))
    out += fmt::format("exchanges: a rank sends {} in a step\n", size_text(*sent));
  out += disk_text(config, site, trace);
  out += recompute_text(config);
  out += host_memory_text(config, site, trace);
  return out + memory_text(memory_need(config, site, trace));
}

std::string memory_warning(const TrainConfig& config, const RankLayout& site,
                           const ShapeTrace& trace) {
  const auto available = static_cast<double>(available_bytes());
  const double needed = host_bytes(config, site, trace);
  if (config.device.type == "cuda" || available == 0.0 || needed <= available) return {};
  std::vector<std::string> less;
  for (const int replica : replica_sizes(site)) {
    const double bytes = host_bytes(config, {site.ranks, site.ranks_per_node, replica}, trace);
    if (replica <= site.replica || bytes > available) continue;
    less.push_back(fmt::format("\"sync.replica\": {} takes {}", replica, size_text(bytes)));
    break;
  }
  if (config.device.recompute != Recompute::kBlock && config.model->has_blocks())
    less.emplace_back("\"recompute\": \"block\" takes less");
  if (config.length.batch_size > 1) less.emplace_back("a smaller batch_size, too");
  return fmt::format("{} of this host need some {}, of which {} are free{}{}",
                     counted(site.ranks_per_node, "rank"), size_text(needed), size_text(available),
                     less.empty() ? "" : ": ", fmt::join(less, "; "));
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
      {"bytes_sent_in_a_step", whole(sent_by_rank(config, site, trace).value_or(0.0))},
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

MemoryNeed memory_need(const TrainConfig& config, const RankLayout& of_ranks,
                       const ShapeTrace& trace) {
  // A replica counts as one rank, and each of its ranks has a share; on GPUs layers' own is whole.
  const RankLayout site = of_ranks.replicas();
  const bool replicas = of_ranks.replica > 1;
  const double share = 1.0 / of_ranks.replica;
  const bool on_gpu = config.device.type == "cuda", low = is_low_precision(config.device.compute),
             pass = gradients_pass(config, site.ranks);
  // Bytes of a number: of parameters, and of what layers compute with
  const auto wide = static_cast<double>(size_of(config.device.dtype)),
             compute = low ? static_cast<double>(size_of(config.device.compute)) : wide;
  const OptimizerRule& rule = *config.optimizer.rule;
  const BucketPlan plan = plan_buckets(config, trace);
  double elements = 0.0, largest = 0.0;
  for (const BucketLayout& bucket : plan.buckets) {
    elements += static_cast<double>(bucket.elements);
    largest = std::max(largest, static_cast<double>(bucket.elements));
  }
  const double flat = elements * wide;
  MemoryNeed need;
  need.parameters = need.gradients = flat;
  if (pass || (replicas && config.length.accumulate == 1))
    need.gradients = passing_elements(plan, trace,
                                      !replicas ? Waiting::kNone
                                      : on_gpu  ? Waiting::kLast
                                                : Waiting::kLastInOrder) *
                     wide;
  if (replicas) {  // and the mean of a part: of all buckets, of one, or in its place
    largest *= flat / elements;
    if (on_gpu) {
      need.gradients += share * flat;
      need.receive += largest;  // the others' gradients of a part, to be added up
    } else {
      const bool in_place = static_cast<std::size_t>(of_ranks.replica) <= WeightedSum().in.size();
      need.gradients += share * (!pass ? flat : in_place ? 0.0 : largest);
    }
  }
  double states = 0.0, tables = 0.0;  // bytes of states; of updates' tables
  std::int64_t workspace = 0;
  for (const BucketLayout& bucket : plan.buckets) {
    std::vector<LayerExtent> layers;
    for (const BucketSlot& slot : bucket.slots) {
      layers.push_back(layer_of(slot));
      states += static_cast<double>(state_elements_of(rule, layers.back())) * wide;
      if (rule.facts().measures_layers)
        tables += static_cast<double>(update_layer_bytes(layers.back().elements));
    }
    workspace = std::max(workspace, rule.workspace(layers));
  }
  states *= static_cast<double>(rule.facts().states.size());
  need.states = states + tables + static_cast<double>(workspace) * wide;
  need.low = low ? elements * compute : 0.0;
  for (const Parameter* parameter : config.model->parameters()) {
    if (parameter->trainable) continue;
    const bool base = parameter->in == Parameter::In::kBase;
    const double each =
        low && base && parameter->is_weight() ? compute : wide + (low ? compute : 0.0);
    need.frozen += static_cast<double>(parameter->shape.elements()) * each /
                   (base && !on_gpu ? of_ranks.ranks_per_node : 1);
  }
  for (int copy = (config.state.ema ? 1 : 0) + (config.state.lookahead ? 1 : 0); copy > 0; --copy) {
    need.average += flat;
    for (const ModelBuffer* buffer : config.model->buffers()) {
      if (is_floating(buffer->dtype))
        need.average += static_cast<double>(buffer->shape.elements()) * wide;
    }
  }
  double most_received = 0.0;
  for (std::size_t k = 0; k < config.sync.phases(); ++k) {  // the most of any
    const SyncPhase& part = config.sync.phase(k);
    const AlgorithmPlan& algorithm = part.algorithm;
    double sync = flat * algorithm.scratch, parameters = flat;
    for (const KeptState& state : algorithm.states) {
      if (state.numbers > 0) continue;  // a few
      sync += elements * static_cast<double>(state.copies_on(part.topology.get(), 0)) *
              static_cast<double>(size_of(state.dtype.value_or(config.device.dtype)));
    }
    const double in_place =
        flat * static_cast<double>(algorithm.messages.gathers
                                       ? static_cast<std::size_t>(site.ranks - 1)
                                       : receive_buffers(part.topology.get(), site));
    const double tensors =
        algorithm.messages.mixed + (algorithm.messages.mixes_states ? states / flat : 0.0);
    double receive = in_place * tensors;
    if (part.topology && config.sync.transport.reads_parameters && !replicas &&
        !algorithm.messages.always && site.ranks_per_node > 1) {
      parameters *= 2.0;  // two buffers, as neighbours read them in shared memory
      // On GPUs group sums need a buffer as well.
      if (!on_gpu && site.ranks_per_node == site.ranks) receive -= in_place;
    }
    need.sync = std::max(need.sync, sync);
    most_received = std::max(most_received, receive);
    need.parameters = std::max(need.parameters, parameters);
  }
  for (double* kept : {&need.states, &need.average, &need.sync}) *kept *= share;
  need.receive += share * most_received;
  if (!on_gpu) {
    need.parameters *= share, need.low *= share;
  } else if (replicas && low) {  // divided buckets
    need.parameters *= share;
    for (const BucketLayout& bucket : plan.buckets) {
      for (const VectorRange& range : vectors_of(bucket))
        need.parameters += static_cast<double>(range.elements) * wide;
    }
  }
  need.activations = static_cast<double>(trace.activation_bytes);
  for (const TensorInfo& tensor : config.data.info.tensors) {
    if (tensor.shape.rank() == 0) continue;  // a number a sample
    const double element = tensor.pixels ? compute : static_cast<double>(size_of(tensor.dtype));
    const auto numbers = static_cast<double>(config.length.batch_size * tensor.shape.elements());
    need.batches += 3.0 * numbers * element;
    // A device makes them of bytes, in three slots and in the place that graphs take them from; of
    // pictures first a batch of images; where images are changed, with two batches more.
    if (tensor.pixels && on_gpu) {
      const bool pictures = images_of(config.data.info).pictures.has_value();
      const double slots = config.device.cuda_graphs == GraphChoice::kOff ? 3.0 : 4.0;
      need.batches += (pictures ? slots * PicturePool::kRoom + 1.0 : slots) * numbers;
      if (steps_of(config.data.augment, pictures) > 0) need.batches += 2.0 * numbers;
    }
  }
  if (counts_confusions(config.data.info, *config.model))
    need.tests = ConfusionCounter::bytes(config.data.info.test_samples);
  if (config.data.cache && !on_gpu)
    need.cache = static_cast<double>(
        plan_cache(config.data.info, config.data.cache->limit_bytes(), of_ranks.ranks_per_node)
            .bytes());
  return need;
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
