#include "kernels/cuda/libraries/cudnn.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/operations/convolutions.h"
#include "kernels/cuda/libraries/cudnn_finish.h"

namespace starling::cuda {

namespace {

/// Binds a tensor; a missing one is null, which no graph accepts.
Binding bind(GraphTensor as, const Tensor& tensor) { return {as, tensor ? tensor.raw() : nullptr}; }
/// The tensors that both passes of attention read.
Bindings bind(const Attention& args, const View& y, const Tensor& lse) {
  Bindings result{{GraphTensor::kQ, args.q.raw()},
                  {GraphTensor::kK, args.k.raw()},
                  {GraphTensor::kV, args.v.raw()},
                  {GraphTensor::kY, y.raw()},
                  bind(GraphTensor::kStats, lse)};
  if (args.mask) result.push_back({GraphTensor::kMask, args.mask.raw()});
  return result;
}

/// Plans assume tensors aligned to 16 bytes.
bool aligned(const Bindings& bindings) {
  return std::all_of(bindings.begin(), bindings.end(), [](const Binding& binding) {
    return binding.data != nullptr && reinterpret_cast<std::uintptr_t>(binding.data) % 16 == 0;
  });
}

/// The most candidates that `cudnn_benchmark` times, the first of the heuristics
constexpr int kTimed = 8;
constexpr int kTimings = 3;
constexpr double kSlow = 3.0;  ///< times the best: not timed again
/// A slower first run is taken to include loading of kernels, and repeated
constexpr double kLoadingMs = 25.0;

/// The plans of all graphs requested so far, each made at the first call, and the engine chosen for
/// each. A graph without an engine is remembered and logged once.
class CudnnPlans {
 public:
  CudnnPlans(const LibrarySettings& settings, WorkspaceSource& workspaces,
             std::unique_ptr<GraphMaker> maker)
      : settings_(settings), workspaces_(workspaces), maker_(std::move(maker)) {}

  /// A graph's plan and the chosen candidate.
  struct Entry {
    GraphSpec spec;
    std::unique_ptr<GraphPlan> plan;
    int chosen = -1;
    std::size_t workspace = 0;
    bool timed = false;
  };
  /// Returns the plan; null if no engine supports the graph.
  Entry* find(const GraphSpec& spec) {
    const auto [at, fresh] = entries_.try_emplace(spec);
    Entry& entry = at->second;
    if (fresh) prepare(spec, entry);
    return entry.plan ? &entry : nullptr;
  }
  void run(Entry& entry, const Bindings& bindings, StreamHandle stream) {
    if (settings_.benchmark && !entry.timed) choose(entry, bindings, stream);
    issue(entry, entry.chosen, entry.workspace, bindings, stream);
  }

  std::string version() const { return maker_->version(); }

 private:
  void prepare(const GraphSpec& spec, Entry& entry) {
    entry.spec = spec;
    std::string why;
    entry.plan =
        maker_->plan(spec, {.tf32 = settings_.tf32, .deterministic = settings_.deterministic}, why);
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
  void issue(Entry& entry, int candidate, std::size_t bytes, const Bindings& bindings,
             StreamHandle stream) {
    const std::shared_ptr<Storage> workspace = bytes == 0 ? nullptr : workspaces_.workspace(bytes);
    entry.plan->run(candidate, bindings, workspace ? workspace->data() : nullptr, stream);
  }
  /// Times the first candidates on the call's tensors, whose output is written again afterwards,
  /// and keeps the fastest. A candidate that is far slower is dropped after its first run, or after
  /// its first run without loading.
  void choose(Entry& entry, const Bindings& bindings, StreamHandle stream) {
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
    log::write(
        log::Level::kDebug,
        fmt::format("[cudnn] {}: {}, the fastest of {} out of {} candidates, takes {:.3f} ms",
                    text(entry.spec), entry.plan->name(entry.chosen), tried,
                    entry.plan->candidates(), best));
  }

  LibrarySettings settings_;
  WorkspaceSource& workspaces_;
  std::unique_ptr<GraphMaker> maker_;
  std::map<GraphSpec, Entry> entries_;
};

class CudnnLibrary final : public Cudnn {
 public:
  CudnnLibrary(const LibrarySettings& settings, WorkspaceSource& workspaces,
               std::unique_ptr<GraphMaker> maker)
      : workspaces_(workspaces), plans_(settings, workspaces, std::move(maker)) {}

  bool conv2d_forward(const Conv2dForward& args, StreamHandle stream) override {
    const Bindings bindings{bind(GraphTensor::kX, args.x), bind(GraphTensor::kWeight, args.weight),
                            bind(GraphTensor::kY, args.y)};
    return run(args, bindings, stream);
  }

  bool conv2d_backward_data(const Conv2dBackwardData& args, StreamHandle stream) override {
    const Bindings bindings{bind(GraphTensor::kDy, args.dy),
                            bind(GraphTensor::kWeight, args.weight),
                            bind(GraphTensor::kDx, args.dx)};
    return run(args, bindings, stream);
  }

  bool conv2d_backward_weights(const Conv2dBackwardWeights& args, StreamHandle stream) override {
    const DType dtype = args.x.dtype();
    // Engines write gradients only in x's type, and do not accumulate.
    const bool direct = !args.accumulate && args.dweight && args.dweight.dtype() == dtype;
    if (!direct && args.dweight && args.dweight.dtype() != DType::kFloat32) return false;
    Tensor result = direct ? args.dweight : Tensor();
    Bindings bindings{bind(GraphTensor::kX, args.x), bind(GraphTensor::kDy, args.dy)};
    if (direct) bindings.push_back(bind(GraphTensor::kDweight, result));
    Plan* plan = find(args, bindings);
    if (!plan) return false;
    if (!direct) {
      result = scratch(args.dweight.shape(), dtype);
      bindings.push_back(bind(GraphTensor::kDweight, result));
    }
    plans_.run(*plan, bindings, stream);
    if (!direct) take_gradient(result, args.dweight, args.accumulate, stream);
    return true;
  }

  bool attention_forward(const AttentionForward& args, StreamHandle stream) override {
    const Bindings bindings = bind(args, args.y, args.lse);
    if (!run(args, bindings, stream)) return false;
    // cuDNN returns NaN for queries whose keys are all masked.
    if (args.mask) clear_masked_queries(args, stream);
    return true;
  }

  bool attention_backward(const AttentionBackward& args, StreamHandle stream) override {
    Bindings bindings = bind(args, args.y, args.lse);
    bindings.insert(bindings.end(), {{GraphTensor::kDy, args.dy.raw()},
                                     {GraphTensor::kDq, args.dq.raw()},
                                     {GraphTensor::kDk, args.dk.raw()},
                                     {GraphTensor::kDv, args.dv.raw()}});
    return run(args, bindings, stream);
  }

  std::string version() const override { return plans_.version(); }

 private:
  using Plan = CudnnPlans::Entry;

  /// The plan for a call on these tensors, including those that the library adds. Calls that cannot
  /// run are not planned.
  template <class Args>
  Plan* find(const Args& args, const Bindings& bindings) {
    std::string why;
    const std::optional<GraphSpec> spec = spec_of(args, why);
    if (!spec) {
      if (refused_.insert(why).second)
        log::write(log::Level::kDebug,
                   fmt::format("[cudnn] an operation is not one graph of cuDNN's: {}", why));
      return nullptr;
    }
    return aligned(bindings) ? plans_.find(*spec) : nullptr;
  }
  /// False where no graph does the call.
  template <class Args>
  bool run(const Args& args, const Bindings& bindings, StreamHandle stream) {
    Plan* plan = find(args, bindings);
    if (plan) plans_.run(*plan, bindings, stream);
    return plan != nullptr;
  }

  Tensor scratch(const Shape& shape, DType dtype) {
    return {workspaces_.workspace(static_cast<std::size_t>(shape.elements()) * size_of(dtype)), 0,
            shape, dtype};
  }

  WorkspaceSource& workspaces_;
  CudnnPlans plans_;
  std::set<std::string> refused_;  ///< reasons already logged
};

}  // namespace

std::unique_ptr<Cudnn> make_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces,
                                  std::unique_ptr<GraphMaker> maker) {
  return std::make_unique<CudnnLibrary>(settings, workspaces, std::move(maker));
}

}  // namespace starling::cuda
