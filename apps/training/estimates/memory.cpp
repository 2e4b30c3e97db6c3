#include "apps/training/estimates/memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "apps/data/image_collate.h"
#include "apps/data/picture_pool.h"
#include "apps/training/estimates/floor.h"
#include "apps/training/tasks/metric.h"
#include "comm/bucket.h"
#include "comm/exchange_plan.h"
#include "comm/shared/peer_transport.h"
#include "core/error.h"
#include "core/host.h"
#include "core/operations/pointwise.h"
#include "core/operations/updates.h"
#include "core/text.h"
#include "kernels/optimizer.h"

namespace starling {
namespace {

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

/// The topology of a phase with another number of ranks, if it takes that; null for the config's.
std::unique_ptr<Topology> topology_of_others(const SyncPhase& part, const RankLayout& site) {
  if (!part.topology || part.topology->ranks() == site.ranks) return nullptr;
  try {
    const nlohmann::json type{{"type", part.topology_name}};
    ConfigSection section(type, "sync.topology");
    return make_topology(section, site, part.algorithm.topology);
  } catch (const Error&) {
    return nullptr;
  }
}

Recompute recompute_of(const TrainConfig& config) {
  const DeviceType device = config.device.type == "cuda" ? DeviceType::kCuda : DeviceType::kCpu;
  return config.device.recompute.value_or(Pass::usual_recompute(device));
}

ShapeTrace trace_with(const TrainConfig& config, Recompute recompute) {
  PassShape shape = config.pass_shape();
  shape.recompute = recompute;
  return trace_shapes(*config.task, *config.model, shape, config.optimizer.allow_unused);
}

/// "2.7 GiB"; of a host's memory, which its ranks share, "2.7 GiB (10.9 GiB)".
std::string rank_and_host(const TrainConfig& config, const RankLayout& site, double bytes) {
  std::string text = size_text(bytes);
  if (config.device.type != "cuda" && site.ranks_per_node > 1)
    text += fmt::format(" ({})", size_text(site.ranks_per_node * bytes));
  return text;
}

/// Bytes that a rank may take: a part of what is free here, or a GPU's; 0: unknown.
double memory_of_rank(const TrainConfig& config, const RankLayout& site) {
  return config.device.type == "cuda"
             ? kCeilings[0].memory
             : static_cast<double>(available_bytes()) / site.ranks_per_node;
}

}  // namespace

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
      // The others' gradients of a part, to be added up; or pieces that they read where they lie
      const bool peers = config.sync.transport.reads_parameters;
      need.receive +=
          std::max(largest, peers ? 2.0 * static_cast<double>(PeerSettings().piece_bytes) : 0.0);
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
    const std::unique_ptr<Topology> other = topology_of_others(part, site);
    const Topology* topology = other ? other.get() : part.topology.get();
    double sync = flat * algorithm.scratch, parameters = flat;
    for (const KeptState& state : algorithm.states) {
      if (state.numbers > 0) continue;  // a few
      sync += elements * static_cast<double>(state.copies_on(topology, 0)) *
              static_cast<double>(size_of(state.dtype.value_or(config.device.dtype)));
    }
    const double in_place =
        flat * static_cast<double>(algorithm.messages.gathers
                                       ? static_cast<std::size_t>(site.ranks - 1)
                                       : receive_buffers(topology, site));
    const double tensors =
        algorithm.messages.mixed + (algorithm.messages.mixes_states ? states / flat : 0.0);
    double receive = in_place * tensors;
    if (topology && config.sync.transport.reads_parameters && !replicas &&
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

std::string memory_text(const MemoryNeed& need) {
  std::vector<std::string> parts;
  for (const auto& [name, bytes] : need.parts()) {
    if (bytes > 0.0) parts.push_back(size_text(bytes) + " " + name);
  }
  return fmt::format("memory a rank: {}; {} in all\n", fmt::join(parts, ", "),
                     size_text(need.total()));
}

std::string memory_by_keys_text(const TrainConfig& config, const RankLayout& site,
                                const ShapeTrace& trace) {
  const std::vector<int> replicas = replica_sizes(site);
  std::vector<std::pair<std::string, ShapeTrace>> traces;
  if (config.model->has_blocks()) {
    for (const auto& [name, mode] : {std::pair{"none ", Recompute::kNone},
                                     {"cheap ", Recompute::kCheap},
                                     {"block ", Recompute::kBlock}})
      traces.emplace_back(name, trace_with(config, mode));
  } else {
    traces.emplace_back("", trace);
  }
  if (replicas.size() * traces.size() == 1) return {};
  const bool gpus = config.device.type == "cuda";
  std::string text;
  for (const int replica : replicas) {
    std::vector<std::string> parts;
    for (const auto& [name, of] : traces) {
      const RankLayout with{site.ranks, site.ranks_per_node, replica};
      parts.push_back(name + rank_and_host(config, site, memory_need(config, with, of).total()));
    }
    text += fmt::format("memory of a rank{}{}: {}{}\n",
                        site.ranks_per_node > 1 && !gpus
                            ? fmt::format(" (of this host's {})", site.ranks_per_node)
                            : "",
                        replicas.size() > 1 ? fmt::format(" with sync.replica {}", replica) : "",
                        traces.size() > 1 ? "recompute " : "", fmt::join(parts, ", "));
  }
  return text;
}

std::vector<std::string> what_fits(const TrainConfig& config, const RankLayout& site,
                                   double bytes) {
  const Recompute now = recompute_of(config);
  const bool blocks = now != Recompute::kBlock && config.model->has_blocks(),
             steps_alike = std::ranges::none_of(config.sync.plans(), [](const AlgorithmPlan*plan) {
               return plan->steps.asynchronous;
             });
  std::vector<int> replicas = replica_sizes(site);
  std::erase_if(replicas, [&](int replica) {
    return replica < site.replica || (replica > site.replica && !steps_alike);
  });
  std::vector<std::string> fits;
  const auto look = [&](const ShapeTrace& trace, int from, int until, const char* recompute) {
    for (const int replica : replicas) {
      if (replica < from || replica > until) continue;
      const RankLayout with{site.ranks, site.ranks_per_node, replica};
      const double needed = memory_need(config, with, trace).total();
      if (needed > bytes) continue;
      const std::string key =
          replica > site.replica ? fmt::format("\"sync.replica\": {}", replica) : "";
      fits.push_back(fmt::format("{}{}{} takes {}", key,
                                 key.empty() || *recompute == '\0' ? "" : " with ", recompute,
                                 rank_and_host(config, site, needed)));
      return;
    }
  };
  const char* const block = "\"recompute\": \"block\"";
  constexpr int kAll = 1 << 30;
  if (blocks) look(trace_with(config, Recompute::kBlock), site.replica, site.replica, block);
  look(trace_with(config, now), site.replica + 1, kAll, "");
  if (blocks && fits.empty())
    look(trace_with(config, Recompute::kBlock), site.replica + 1, kAll, block);
  return fits;
}

std::string batch_text(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace) {
  const double bytes = memory_of_rank(config, site);
  const MemoryNeed need = memory_need(config, site, trace);
  const double of_batch = need.activations + need.batches;
  if (bytes == 0.0 || of_batch == 0.0) return {};
  const double fits = std::floor(static_cast<double>(config.length.batch_size) *
                                 (bytes - (need.total() - of_batch)) / of_batch);
  std::vector<std::string> parts{fmt::format("batch_size fits up to {:.0f}", std::max(0.0, fits))};
  if (need.total() > bytes) {
    for (std::string& other : what_fits(config, site, bytes)) parts.push_back(std::move(other));
    if (parts.size() == 1 && fits < 1.0) parts.emplace_back("no other recompute or replica fits");
  }
  const std::string where =
      config.device.type == "cuda"
          ? fmt::format("an {} has {}", kCeilings[0].device, size_text(bytes))
          : fmt::format("of this host {} are free", size_text(bytes * site.ranks_per_node));
  return fmt::format("{}: {}\n", where, fmt::join(parts, "; "));
}

std::string memory_warning(const TrainConfig& config, const RankLayout& site,
                           const ShapeTrace& trace) {
  const double bytes = memory_of_rank(config, site),
               needed = memory_need(config, site, trace).total();
  if (config.device.type == "cuda" || bytes == 0.0 || needed <= bytes) return {};
  std::vector<std::string> less = what_fits(config, site, bytes);
  if (config.length.batch_size > 1) less.emplace_back("a smaller batch_size takes less");
  return fmt::format("{} of this host need{} some {}, of which {} are free{}{}",
                     counted(site.ranks_per_node, "rank"), site.ranks_per_node == 1 ? "s" : "",
                     size_text(site.ranks_per_node * needed),
                     size_text(site.ranks_per_node * bytes), less.empty() ? "" : ": ",
                     fmt::join(less, "; "));
}

}  // namespace starling
