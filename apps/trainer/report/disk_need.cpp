#include "apps/trainer/report/disk_need.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "apps/trainer/report/report.h"
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
  double parameters = 0.0, buffers = 0.0, states = 0.0, averages = 0.0, kept = 0.0;
  for (const Parameter* parameter : config.model->parameters())
    parameters += file_bytes(parameter->shape.elements(), dtype);
  for (const ModelBuffer* buffer : config.model->buffers())
    buffers +=
        file_bytes(buffer->shape.elements(), is_floating(buffer->dtype) ? dtype : buffer->dtype);
  std::int64_t elements = 0;
  const BucketPlan plan =
      plan_buckets(trace.ready_order, trace.unused, dtype, config.sync.bucket_bytes);
  for (const BucketLayout& bucket : plan.buckets) {
    for (const BucketSlot& slot : bucket.slots) {
      const std::int64_t own = rule.state_elements(layer_of(slot));
      states += file_bytes(own > 0 ? own : slot.elements, dtype);
      elements += slot.elements;
    }
  }
  states *= static_cast<double>(rule.facts().states.size());
  averages = ((config.state.ema ? 1 : 0) + (config.state.lookahead ? 1 : 0)) * parameters;
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
  // Statistics of batch norm are each rank's own, and so is what an algorithm keeps.
  const double alike = parameters + states + averages,
               own = kept + (config.sync.synchronized_norms ? 0.0 : buffers);
  DiskNeed need;
  need.model = parameters + buffers;
  need.checkpoint = (equal ? alike : site.ranks * alike) + site.ranks * own +
                    (config.sync.synchronized_norms ? buffers : 0.0);
  if (config.state.checkpoint.best) need.best = need.checkpoint + need.model;
  need.kept = kept_checkpoints(config, site) * need.checkpoint + need.best +
              (config.state.ema ? 2.0 : 1.0) * need.model;
  need.most = need.kept + std::max(need.checkpoint, need.best);
  return need;
}

std::string disk_text(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace) {
  const DiskNeed need = disk_need(config, site, trace);
  return fmt::format(
      "disk: {} a checkpoint{}, {} with the {} that are kept{} and the model, {} at "
      "most while one is written\n",
      size_text(need.checkpoint), site.ranks > 1 ? fmt::format(" of {} ranks", site.ranks) : "",
      size_text(need.kept), kept_checkpoints(config, site), need.best > 0.0 ? ", the best" : "",
      size_text(need.most));
}

}  // namespace starling
