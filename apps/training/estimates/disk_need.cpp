#include "apps/training/estimates/disk_need.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "apps/training/estimates/report.h"
#include "comm/bucket.h"
#include "kernels/optimizer.h"

namespace starling {
namespace {

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
  for (const BucketLayout& bucket :
       plan_buckets(trace.ready_order, trace.unused, dtype, config.sync.bucket_bytes).buckets) {
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
  // What ranks have alike is written once: counts, all that replicas share, and statistics of batch
  // norm where ranks make them together. What an algorithm keeps is each rank's own.
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
