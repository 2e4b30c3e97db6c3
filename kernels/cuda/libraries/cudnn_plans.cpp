#include "kernels/cuda/libraries/cudnn_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace starling::cuda {

namespace {

/// The most candidates that `cudnn_benchmark` times, the first of the heuristics
constexpr int kTimed = 8;
constexpr int kTimings = 3;
constexpr double kSlow = 3.0;  ///< times the best: not timed again
/// A slower first run is taken to include loading of kernels, and repeated
constexpr double kLoadingMs = 25.0;

}  // namespace

CudnnPlans::CudnnPlans(const LibrarySettings& settings, WorkspaceSource& workspaces,
                       std::unique_ptr<GraphMaker> maker)
    : settings_(settings), workspaces_(workspaces), maker_(std::move(maker)) {}

CudnnPlans::Entry* CudnnPlans::find(const GraphSpec& spec) {
  const auto [at, fresh] = entries_.try_emplace(spec);
  Entry& entry = at->second;
  if (fresh) prepare(spec, entry);
  return entry.plan ? &entry : nullptr;
}

void CudnnPlans::prepare(const GraphSpec& spec, Entry& entry) {
  entry.spec = spec;
  std::string why;
  entry.plan = maker_->plan(spec, rules(), why);
  for (int i = 0; i < entry.plan->candidates() && entry.chosen < 0; ++i) {
    if (entry.plan->finalise(i, why)) entry.chosen = i;
  }
  if (entry.chosen >= 0) {
    entry.workspace = entry.plan->workspace(entry.chosen);
    return;
  }
  entry.plan.reset();
  log::warning("[cudnn] {}: no engine ({}); our own kernel is used", text(spec), why);
}

void CudnnPlans::run(Entry& entry, const Bindings& bindings, StreamHandle stream) {
  if (settings_.benchmark && !entry.timed) choose(entry, bindings, stream);
  issue(entry, entry.chosen, entry.workspace, bindings, stream);
}

void CudnnPlans::issue(Entry& entry, int candidate, std::size_t bytes, const Bindings& bindings,
                       StreamHandle stream) {
  const std::shared_ptr<Storage> workspace = bytes == 0 ? nullptr : workspaces_.workspace(bytes);
  entry.plan->run(candidate, bindings, workspace ? workspace->data() : nullptr, stream);
}

/// Times the first candidates on the call's tensors, whose output is written again afterwards, and
/// keeps the fastest. A candidate that is far slower is dropped after its first run, or after its
/// first run without loading.
void CudnnPlans::choose(Entry& entry, const Bindings& bindings, StreamHandle stream) {
  entry.timed = true;
  double best = 0.0;
  const int first = entry.chosen;
  int tried = 0;
  for (int i = first; i < entry.plan->candidates() && tried < kTimed; ++i) {
    std::string why;
    if (i != first && !entry.plan->finalise(i, why)) continue;
    ++tried;
    const std::size_t bytes = entry.plan->workspace(i);
    const auto timed = [&] {
      return entry.plan->milliseconds(stream, [&] { issue(entry, i, bytes, bindings, stream); });
    };
    std::array<double, kTimings> times{};
    try {
      if (timed() > kSlow * best + kLoadingMs && i != first) continue;
      times[0] = timed();
      if (i != first && times[0] > kSlow * best) continue;
      for (int k = 1; k < kTimings; ++k) times[static_cast<std::size_t>(k)] = timed();
    } catch (const Error& error) {
      if (i == first) throw;
      log::write(log::Level::kDebug, fmt::format("[cudnn] {}: {} left out: {}", text(entry.spec),
                                                 entry.plan->name(i), error.what()));
      continue;
    }
    std::sort(times.begin(), times.end());
    if (i != first && times[kTimings / 2] >= best) continue;
    best = times[kTimings / 2];
    entry.chosen = i;
    entry.workspace = bytes;
  }
  log::write(log::Level::kDebug,
             fmt::format("[cudnn] {}: {}, the fastest of {} out of {} candidates, takes {:.3f} ms",
                         text(entry.spec), entry.plan->name(entry.chosen), tried,
                         entry.plan->candidates(), best));
}

}  // namespace starling::cuda
