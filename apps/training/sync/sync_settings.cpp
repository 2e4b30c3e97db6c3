#include "apps/training/sync/sync_settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "apps/data/cached.h"
#include "apps/training/sync/phases.h"
#include "apps/training/tasks/norm_statistics.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

/// Refuses keys about codes where none are sent.
void check_keys_of_codes(const ConfigSection& sync, const SyncSettings& settings,
                         const std::string& exchange) {
  for (const AlgorithmPlan* plan : settings.plans()) {
    const std::string key = settings.mixer.encodes || !plan->messages.encoding
                                ? ""
                                : plan->messages.encoding->key_of_codes();
    if (key.empty()) continue;
    sync.error(
        "exchange",
        "is {}, but sync.algorithm.{} is about numbers that are encoded; allowed: bf16, int8, int4",
        exchange, key);
  }
}

/// Refuses what keys of `sync` ask for and the run's algorithms do not have.
void check_exchanges(const ConfigSection& sync, const SyncPartners& with,
                     const SyncSettings& settings, const std::string& exchange) {
  const std::vector<const AlgorithmPlan*> plans = settings.plans();
  const auto any = [&](auto&& has) {
    return std::any_of(plans.begin(), plans.end(),
                       [&](const AlgorithmPlan* plan) { return has(*plan); });
  };
  if (!any([&](const AlgorithmPlan& plan) { return plan.takes(settings.mixer); })) {
    std::vector<std::string> others;
    for (const AlgorithmPlan& other : known_algorithms()) {
      if (other.takes(settings.mixer)) others.push_back(other.name);
    }
    sync.error("exchange", "is {}, but {} {}; allowed: {}, or one of these algorithms: {}",
               exchange, plans[0]->label(),
               settings.mixer.sparse ? "mixes all numbers" : "exchanges in full precision",
               plans[0]->messages.encoding ? "fp32, bf16, int8, int4" : "fp32",
               fmt::join(others, ", "));
  }
  if (settings.lr_scale != 1.0 &&
      !any([](const AlgorithmPlan& plan) { return !plan.equality.always(); })) {
    sync.error("lr_scale",
               "is {}, but {} averages the gradients of all ranks in every step; allowed: 1, or "
               "another optimizer.lr",
               settings.lr_scale, plans[0]->label());
  }
  if (settings.lr_scale != 1.0 && with.optimizer.rule->facts().needs_constant_rate &&
      any([](const AlgorithmPlan& plan) { return plan.equality.mean_gradients_before != 0; })) {
    sync.error("lr_scale",
               "is {} in some of the steps, but {} needs one rate in all; allowed: 1, or another "
               "optimizer.lr",
               settings.lr_scale, with.optimizer.type);
  }
  if (settings.auto_bucket && settings.algorithm.cost.exchanges.empty()) {
    sync.error("bucket_mb", "is auto, but {} does not say what a step takes; allowed: a number",
               settings.algorithm.label());
  }
}

/// `sync.verify`: a word, or a number of steps.
void read_verify(ConfigSection& sync, SyncSettings& settings) {
  if (sync.has("verify") && sync.raw("verify", "text or number", "").is_number()) {
    settings.verify_every = sync.integer("verify", 0, Range::closed(1, 1e9), "");
  } else {
    sync.read("verify", settings.verify_checkpoints, {{"off", false}, {"checkpoint", true}},
              "ranks compare what must be equal between them, before each checkpoint, or, for a "
              "number, every so many steps; where something differs the run ends with status 3 and "
              "the odd rank's name");
  }
  if (!settings.verify_checkpoints && settings.verify_every == 0) return;
  if (const std::string why = why_not_verified(settings.algorithm, settings.mixer); !why.empty())
    sync.error("verify", "has nothing to compare: {}; allowed: off", why);
}

int read_replica(ConfigSection& sync, const SyncPartners& with, bool& by_host) {
  std::string word;
  const int on_host = with.site.ranks_per_node;
  const double given = sync.number_or_word(
      "replica", 1.0, Range::closed(1, 4096), {"host"}, word,
      "consecutive ranks of a host that form one replica, which counts as one rank with the batch "
      "of all: with 4, 8 ranks are two replicas. Each rank updates a part of the model and keeps "
      "that part's states; on CPUs they share its memory, on GPUs each has the parameters, in bf16 "
      "and fp16 their fp32 numbers by parts; host: all ranks of a host");
  by_host = !word.empty();
  const int replica = by_host ? on_host : static_cast<int>(given);
  sync.resolve("replica", replica);
  const std::vector<int> allowed = replica_sizes(with.site);
  if (std::ranges::find(allowed, replica) == allowed.end() || given != std::floor(given))
    sync.error("replica", "is {}, and this host has {} of {}; allowed: {}{}",
               by_host ? on_host : given, on_host, counted(with.site.ranks, "rank"),
               fmt::join(allowed, ", "),
               replica > 1 && given == std::floor(given)
                   ? fmt::format(", or a multiple of {} ranks on each host", replica)
                   : "");
  return replica;
}

/// True where batch norms go by all ranks' batches.
bool read_batch_norm(ConfigSection& sync, const SyncPartners& with, SyncSettings& settings) {
  const std::string statistics = sync.choice(
      "batch_norm", "local", {"local", "sync", "recalibrate"},
      "statistics of batch norms; local: each rank trains with its own batch's, and the mean model "
      "has the mean of them; sync: with those of all ranks' batches; recalibrate: as local, but "
      "the mean model's are measured on training batches before each test");
  if (statistics == "local") return false;
  const std::int64_t batches =
      sync.integer("recalibrate_batches", 20, Range::closed(1, 1e6),
                   "recalibrate: training batches of each rank that are measured");
  const auto& buffers = with.model.buffers();
  if (std::none_of(buffers.begin(), buffers.end(),
                   [](const ModelBuffer* buffer) { return is_norm_statistic(buffer->name); }))
    sync.error("batch_norm", "is {}, but the model has no batch norm; allowed here: local",
               statistics);
  const bool joint = statistics == "sync";
  if (!joint) settings.recalibrate_batches = batches;
  settings.synchronized_norms = joint && with.site.ranks > 1;
  return joint;
}

}  // namespace

std::vector<int> replica_sizes(const RankLayout& site) {
  std::vector<int> sizes;
  for (int size = 1; size <= site.ranks_per_node; ++size) {
    if (site.ranks_per_node % size == 0 && site.ranks % size == 0) sizes.push_back(size);
  }
  return sizes;
}

SyncSettings read_sync(ConfigSection& root, const SyncPartners& given) {
  SyncSettings settings;

  ConfigSection sync = root.section("sync", "how ranks agree");
  ConfigSection algorithm =
      sync.section("algorithm",
                   "who sends what when, and what it does to the update; a text is its type; auto: "
                   "gossip or allreduce, and the topology, by measurement at the start",
                   "type");
  settings.algorithm = read_first_algorithm(algorithm, settings);
  settings.replica = read_replica(sync, given, settings.replica_by_host);
  // A replica is a rank to all that follows
  RankLayout site = given.site;
  site.replica = settings.replica;
  const SyncPartners with{given.device, given.optimizer, given.model, site.replicas(),
                          given.unequal_data};
  given.optimizer.rule->know_ranks(with.site.ranks);
  for (const ParameterGroup& group : given.optimizer.groups)
    group.rule->know_ranks(with.site.ranks);
  ConfigSection transport =
      sync.section("transport",
                   "what carries exchanges; a text is its type. CPUs: mpi, or between ranks of one "
                   "host nothing (direct: they read each other's parameters where they lie); auto "
                   "is direct. GPUs: nccl, or staged (host memory and MPI; mpi is the same); auto "
                   "is nccl where every rank has it and a GPU of its own, and between ranks of one "
                   "host direct where their GPUs reach each other's memory; direct asks for that, "
                   "and is an error where they do not. zeromq: encrypted messages, of ranks that "
                   "know a secret",
                   "type");
  settings.transport = read_transport(transport);
  if (transport.resolved().size() == 1) sync.resolve("transport", settings.transport.name);
  if (!settings.transport.between_cpus && with.device.type == "cpu") {
    sync.error("transport", "is {}, which connects GPUs only; for device cpu: {}",
               settings.transport.name, transports_between_cpus());
  }
  if (!settings.transport.between_gpus && with.device.type == "cuda") {
    sync.error("transport", "is {}, which connects CPUs only; for device cuda: auto",
               settings.transport.name);
  }
  sync.read("timeout_s", settings.timeout_s, Range::closed(0.1, 1e7),
            "seconds after which a wait for other ranks is an error");
  sync.read("heartbeat_s", settings.heartbeat_s, Range::closed(0.5, 1e7),
            "seconds without a sign of life after which another host counts as lost, and with "
            "elastic.join any rank that others wait for; a rank of the same host does as soon as "
            "its process has ended");
  sync.read("overlap", settings.overlap, "exchanges run during the next forward and backward pass");
  std::string word;
  const double bucket_mb = sync.number_or_word(
      "bucket_mb", 25.0, Range::positive(), {"auto"}, word,
      "MiB of parameters that close a bucket; auto: chosen by trial passes and measured exchanges");
  settings.auto_bucket = word == "auto";
  settings.bucket_bytes = kMebibyte * (settings.auto_bucket ? 25.0 : bucket_mb);
  const std::string exchange = sync.choice(
      "exchange", "fp32", mixers().names(),
      "number format on the wire of gossip, qgm, gossip_diloco and diloco; bf16 halves the bytes, "
      "int8 quarters them, int4 leaves an eighth, and what is mixed keeps the ranks' mean to "
      "rounding; sparse, for diloco: the largest numbers alone (fp32 in a run in fp64: fp64)");
  settings.mixer = mixers().make(exchange, "sync.exchange");
  settings.mixer.unequal_data = with.unequal_data;
  std::string scale_word;
  settings.lr_scale = sync.number_or_word(
      "lr_scale", settings.lr_scale, Range::positive(), {"sqrt_ranks"}, scale_word,
      "factor on the learning rate in steps whose gradient is a rank's own, not a mean over all");
  if (!scale_word.empty()) settings.lr_scale = std::sqrt(static_cast<double>(with.site.ranks));
  check_algorithm(sync, settings.algorithm, with);
  read_verify(sync, settings);
  sync.read("max_ctas", settings.max_ctas, Range::closed(0, 64),
            "on GPUs: thread blocks that NCCL's kernels may take; 0: NCCL's choice");

  const bool fp16 = with.device.compute == DType::kFloat16;  // its overflow check
  const bool needs_whole_gradient =
      fp16 || (with.optimizer.clip.norm > 0.0 && !with.optimizer.clip.per_bucket);
  settings.in_backward = !needs_whole_gradient;
  sync.read("update", settings.in_backward, {{"in_backward", true}, {"after_backward", false}},
            "update each bucket the moment its last gradient is ready, or all after the pass");
  if (settings.in_backward && needs_whole_gradient) {
    if (fp16)
      sync.error("update",
                 "is in_backward, but precision fp16 checks the whole gradient for overflow; "
                 "allowed: after_backward");
    sync.error("update",
               "is in_backward, but clip_norm with \"clip\": \"global\" needs the whole gradient; "
               "allowed: after_backward, or \"clip\": \"bucket\"");
  }

  const std::vector<ConfigSection> changes =
      sync.sections("switch", false,
                    "[{step or epoch, algorithm, topology}, …]: from that step on ranks agree in "
                    "another way; see docs/algorithms.md");
  const bool joint_norms = read_batch_norm(sync, given, settings);
  read_first_topology(sync, with, settings);
  read_switch(sync, changes, with, settings);
  for (const AlgorithmPlan* plan : settings.plans()) {
    if (plan->needs.host_messages && with.device.type == "cuda" && with.site.ranks > 1 &&
        !settings.transport.through_host)
      sync.error("transport",
                 "is {}, but ranks of {} look into host memory for what has come; allowed: staged",
                 settings.transport.name, plan->label());
    if (joint_norms && plan->steps.asynchronous)
      sync.error(
          "batch_norm",
          "is sync, but the steps of {} differ from rank to rank; allowed here: local, recalibrate",
          plan->label());
  }
  for (const AlgorithmPlan* plan : settings.plans()) {
    if (settings.replica > 1 && plan->steps.asynchronous)
      sync.error("replica",
                 "is {}, but {} {}, so that a replica's ranks would not update the same step; "
                 "allowed: 1, or {}",
                 settings.replica, plan->label(), plan->steps.timing, plan->steps.undo);
  }
  check_exchanges(sync, with, settings, exchange);
  settings.algorithm = exchanged_by(settings.algorithm, settings.mixer);
  for (SyncPhase& phase : settings.later)
    phase.algorithm = exchanged_by(phase.algorithm, settings.mixer);
  check_keys_of_codes(sync, settings, exchange);
  sync.finish();
  return settings;
}

std::string why_not_verified(const AlgorithmPlan& algorithm, const MixerKind& mixer) {
  if (algorithm.equality.any()) return {};
  if (algorithm.steps.asynchronous || algorithm.topology != TopologyKind::kDoublyStochastic ||
      algorithm.messages.always)
    return fmt::format("with {} nothing is equal on ranks between two steps, or mixed there",
                       algorithm.label());
  if (mixer.encodes || algorithm.growth.encoded.code != Code::kNone)
    return "ranks exchange encoded numbers, and none holds what another has";
  return {};
}

std::vector<const AlgorithmPlan*> SyncSettings::plans() const {
  std::vector<const AlgorithmPlan*> all;
  for (std::size_t k = 0; k < phases(); ++k) all.push_back(&phase(k).algorithm);
  return all;
}

std::string SyncSettings::key(std::size_t k) {
  return k == 0 ? "sync" : fmt::format("sync.switch[{}]", k - 1);
}

std::int64_t SyncPhase::first_step(const RunLength& length) const {
  return epoch > 0.0 ? length.step_of_epoch(epoch) : step;
}

}  // namespace starling
