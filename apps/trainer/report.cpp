#include "apps/trainer/report.h"

#include <fmt/format.h>

#include "comm/bucket.h"
#include "comm/exchange_plan.h"

namespace starling {

namespace {

std::string topology_text(const TrainConfig& config, const RunSite& site) {
  if (!config.topology) return "none (all-reduce)";
  const TopologyReport report = analyse(*config.topology);
  std::string text = fmt::format("{}, {} ranks, ", config.topology_name, site.ranks);
  text += config.topology->period() > 0 ? fmt::format("period {}, ", config.topology->period()) : "no period, ";
  text += fmt::format("spectral gap: {:.6g}, ", report.spectral_gap);
  text +=
      report.rounds_to_consensus ? fmt::format("consensus: exact after {} rounds", *report.rounds_to_consensus) : "consensus: geometric";
  return text;
}

/// Receive buffers that a bucket needs: the most of any round and rank.
std::size_t receive_buffers(const TrainConfig& config, const RunSite& site) {
  if (site.ranks == 1) return 0;
  if (!config.topology) return 1;
  std::size_t most = 0;
  const std::int64_t rounds = config.topology->period() > 0 ? config.topology->period() : 16;
  for (std::int64_t k = 0; k < rounds; ++k) {
    const Round round = config.topology->round(k);
    for (int rank = 0; rank < std::min(site.ranks, 64); ++rank) most = std::max(most, plan_exchange(round, rank).received());
  }
  return most;
}

}  // namespace

std::string size_text(double bytes) {
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024.0) break;
    bytes /= 1024.0;
    unit = next;
  }
  return unit[0] == 'B' ? fmt::format("{} B", static_cast<std::int64_t>(bytes)) : fmt::format("{:.1f} {}", bytes, unit);
}

std::string run_headline(const TrainConfig& config, const RunSite& site, const ShapeTrace& trace) {
  const BucketPlan plan = plan_buckets(trace.ready_order, trace.unused, config.dtype, config.bucket_bytes);
  return fmt::format("{} parameters in {} bucket{}; {} over {}", config.model->parameter_count(), plan.buckets.size(),
                     plan.buckets.size() == 1 ? "" : "s", config.algorithm, topology_text(config, site));
}

std::string dry_run_report(const TrainConfig& config, const RunSite& site, const ShapeTrace& trace) {
  const BucketPlan plan = plan_buckets(trace.ready_order, trace.unused, config.dtype, config.bucket_bytes);
  const RunLength length = run_length(config, site);
  const auto element = static_cast<double>(size_of(config.dtype));
  std::string out =
      fmt::format("ranks: {} ({} on this host)\nparameters: {}\n", site.ranks, site.ranks_on_host, config.model->parameter_count());
  out += fmt::format("data: {} training and {} test samples of {}, {} classes\n", config.data.train_samples, config.data.test_samples,
                     config.data.image.text(), config.data.classes);
  out += fmt::format("length: {} updates an epoch, {} in all\n", length.steps_per_epoch, length.total_steps);
  out += fmt::format("topology: {}\n", topology_text(config, site));
  out += fmt::format("buckets: {}\n", plan.buckets.size());
  double elements = 0.0;
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    const BucketLayout& bucket = plan.buckets[i];
    elements += static_cast<double>(bucket.elements);
    out += fmt::format("  bucket {}: {} tensors, {} elements, {}: {} … {}\n", i, bucket.slots.size(), bucket.elements,
                       size_text(static_cast<double>(bucket.elements) * element), bucket.slots.front().parameter->name,
                       bucket.slots.back().parameter->name);
  }
  const auto states = static_cast<double>(config.rule->state_names().size());
  const auto receive = static_cast<double>(receive_buffers(config, site));
  const double flat = elements * element;
  const double batches = 3.0 * static_cast<double>(config.batch_size * config.data.image.elements()) * element;
  const auto activations = static_cast<double>(trace.activation_bytes);
  out += fmt::format(
      "memory a rank: {} parameters, {} gradients, {} optimizer state, {} receive buffers, {} activations, {} batches; {} in all\n",
      size_text(flat), size_text(flat), size_text(states * flat), size_text(receive * flat), size_text(activations), size_text(batches),
      size_text((2.0 + states + receive) * flat + activations + batches));
  return out;
}

}  // namespace starling
