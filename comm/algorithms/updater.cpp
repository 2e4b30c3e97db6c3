#include "comm/algorithms/updater.h"

#include <cstddef>

#include "core/trace.h"

namespace starling {

Updater::Updater(const AlgorithmSite& site) : site_(site), norm_(site.backend, site.buckets) {
  for (std::size_t b = 0; b < site.buckets.size(); ++b) names_.push_back("bucket " + std::to_string(b));
}

void Updater::measure_global_norm(double scale) { global_factor_ = clip_factor(site_.clip, scale * norm_.of_all()); }

void Updater::update(int bucket, const StepInfo& info, double scale, double self_weight, const std::vector<Tensor>& received,
                     const std::vector<double>& weights) {
  const TraceSpan span("update", names_[static_cast<std::size_t>(bucket)], TraceLane::kUpdate);
  Backend& backend = site_.backend;
  Bucket& b = site_.buckets[static_cast<std::size_t>(bucket)];
  const Event gradients = backend.record();
  const StreamScope scope(backend, StreamKind::kUpdate);
  backend.wait(gradients);
  double factor = 1.0;
  if (needs_all_gradients()) {
    factor = global_factor_;
  } else if (site_.clip.norm > 0.0) {
    factor = clip_factor(site_.clip, scale * norm_.of_bucket(bucket));
  }
  UpdateArgs args;
  args.x = args.x_out = b.parameters;
  args.gradient = b.gradients;
  args.states = b.states;
  args.received = received;
  args.weights = weights;
  args.self_weight = self_weight;
  args.gradient_scale = scale * factor;
  args.decay = b.decay;
  args.lr = info.lr;
  args.step = info.optimizer_step;
  backend.update(site_.rule, args);
}

void Updater::join() {
  Event updated;
  {
    const StreamScope scope(site_.backend, StreamKind::kUpdate);
    updated = site_.backend.record();
  }
  site_.backend.wait(updated);
}

}  // namespace starling
