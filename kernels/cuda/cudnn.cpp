#include "kernels/cuda/cudnn.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "kernels/cuda/cudnn_finish.h"

namespace starling::cuda {

namespace {

constexpr int kTimings = 3;

template <class Args>
constexpr std::string_view kName = "conv2d";
template <>
constexpr std::string_view kName<BatchNormForward> = "batch norm forward";
template <>
constexpr std::string_view kName<BatchNormBackward> = "batch norm backward";

class CudnnLibrary final : public Cudnn {
 public:
  CudnnLibrary(const LibrarySettings& settings, WorkspaceSource& workspaces, std::unique_ptr<GraphMaker> maker)
      : settings_(settings), workspaces_(workspaces), maker_(std::move(maker)) {}

  bool conv2d_forward(const Conv2dForward& args, StreamHandle stream) override {
    Entry* entry = find(args);
    Bindings bindings{{GraphTensor::kX, args.x.raw()}, {GraphTensor::kWeight, args.weight.raw()}, {GraphTensor::kY, args.y.raw()}};
    if (args.norm || args.sum) {  // with other parts of a batch norm than a graph has, or a bias: the backend puts it together
      if (!entry) return false;
      bindings.push_back({GraphTensor::kSum, args.sum.raw()});
      bindings.push_back({GraphTensor::kSquareSum, args.square_sum.raw()});
      const Scales scales(*this, args.norm, bindings, stream);
      return run(*entry, bindings, stream);
    }
    if (entry && args.bias && args.bias.dtype() == DType::kFloat32) {
      bindings.push_back({GraphTensor::kBias, args.bias.raw()});
      return run(*entry, bindings, stream);
    }
    if (!args.bias) return entry && run(*entry, bindings, stream);
    // No engine adds the bias: a pass of our own does.
    Conv2dForward plain = args;
    plain.bias = {};
    entry = find(plain);
    if (!entry || !run(*entry, bindings, stream)) return false;
    add_channel_bias(args.y, args.bias, stream);
    return true;
  }

  bool conv2d_backward_data(const Conv2dBackwardData& args, StreamHandle stream) override {
    Entry* entry = find(args);
    if (!entry) return false;
    Bindings bindings{{GraphTensor::kDy, args.dy.raw()}, {GraphTensor::kWeight, args.weight.raw()}, {GraphTensor::kDx, args.dx.raw()}};
    Tensor factors;
    if (const NormGradient& norm = args.norm) {
      // The engines' three factors are for a pass that BatchNormBackwardApply does with factors of its own.
      const std::int64_t padded = (norm.mean.elements() + 3) / 4 * 4;
      factors = scratch({3, padded}, DType::kFloat32);
      float* unused = factors.data<float>();
      bindings.insert(bindings.end(), {{GraphTensor::kX, norm.x.raw()},
                                       {GraphTensor::kMean, norm.mean.raw()},
                                       {GraphTensor::kInvStd, norm.inv_std.raw()},
                                       {GraphTensor::kGamma, norm.gamma.raw()},
                                       {GraphTensor::kBeta, norm.beta.raw()},
                                       {GraphTensor::kDgamma, norm.sum_dy_xhat.raw()},
                                       {GraphTensor::kDbeta, norm.sum_dy.raw()},
                                       {GraphTensor::kDyFactor, unused},
                                       {GraphTensor::kXFactor, unused + padded},
                                       {GraphTensor::kOffset, unused + 2 * padded}});
    }
    return run(*entry, bindings, stream);
  }

  bool conv2d_backward_weights(const Conv2dBackwardWeights& args, StreamHandle stream) override {
    Entry* entry = find(args);
    if (!entry) return false;
    const DType dtype = args.x.dtype();
    Tensor result = args.dweight;
    const bool in_low = args.dweight_low && !args.accumulate && args.dweight_low.dtype() == dtype;
    if (in_low) {
      result = args.dweight_low;
    } else if (args.accumulate || args.dweight.dtype() != dtype) {
      if (args.dweight.dtype() != DType::kFloat32) return false;
      result = scratch(args.dweight.shape(), dtype);
    }
    Bindings bindings{{GraphTensor::kX, args.x.raw()}, {GraphTensor::kDy, args.dy.raw()}, {GraphTensor::kDweight, result.raw()}};
    const Scales scales(*this, args.norm, bindings, stream);
    if (!run(*entry, bindings, stream)) return false;
    if (in_low) {
      *args.in_low = true;
      return true;
    }
    if (result.storage() != args.dweight.storage()) take_gradient(result, args.dweight, args.accumulate, stream);
    return true;
  }

  bool batch_norm_forward(const BatchNormForward& args, StreamHandle stream) override {
    Entry* entry = find(args);
    if (!entry) return false;
    for (const Tensor& tensor : {args.gamma, args.beta, args.saved_mean, args.saved_inv_std}) {
      if (!tensor || tensor.dtype() != DType::kFloat32) return false;
    }
    Bindings bindings{{GraphTensor::kX, args.x.raw()},       {GraphTensor::kGamma, args.gamma.raw()},
                      {GraphTensor::kBeta, args.beta.raw()}, {GraphTensor::kMean, args.saved_mean.raw()},
                      {GraphTensor::kY, args.y.raw()},       {GraphTensor::kInvStd, args.saved_inv_std.raw()}};
    if (args.residual) bindings.push_back({GraphTensor::kResidual, args.residual.raw()});
    if (!run(*entry, bindings, stream)) return false;
    RunningStatistics statistics{.mean = args.saved_mean.data<float>(), .inv_std = args.saved_inv_std.data<float>()};
    if (args.running_mean) statistics.running_mean = args.running_mean.data<float>();
    if (args.running_var) statistics.running_var = args.running_var.data<float>();
    if (args.batches_tracked) statistics.batches_tracked = args.batches_tracked.data<std::int64_t>();
    statistics.channels = args.x.shape().back();
    statistics.rows = args.x.elements() / statistics.channels;
    statistics.eps = args.eps;
    statistics.momentum = args.momentum;
    move_running_statistics(statistics, stream);
    return true;
  }

  bool batch_norm_backward(const BatchNormBackward& args, StreamHandle stream) override {
    Entry* entry = find(args);
    if (!entry) return false;
    for (const Tensor& tensor : {args.gamma, args.saved_mean, args.saved_inv_std, args.dgamma, args.dbeta}) {
      if (tensor.dtype() != DType::kFloat32) return false;
    }
    Bindings bindings{{GraphTensor::kX, args.x.raw()},         {GraphTensor::kDy, args.dy.raw()},
                      {GraphTensor::kGamma, args.gamma.raw()}, {GraphTensor::kMean, args.saved_mean.raw()},
                      {GraphTensor::kDx, args.dx.raw()},       {GraphTensor::kInvStd, args.saved_inv_std.raw()}};
    if (args.dy2) bindings.push_back({GraphTensor::kDy2, args.dy2.raw()});
    if (args.dresidual) bindings.push_back({GraphTensor::kDresidual, args.dresidual.raw()});
    if (args.relu && args.beta) bindings.push_back({GraphTensor::kBeta, args.beta.raw()});
    if (args.relu && !args.beta) bindings.push_back({GraphTensor::kY, args.y.raw()});
    Tensor dgamma = args.dgamma, dbeta = args.dbeta;
    if (args.accumulate) {
      dgamma = scratch(args.dgamma.shape(), DType::kFloat32);
      dbeta = scratch(args.dbeta.shape(), DType::kFloat32);
    }
    bindings.push_back({GraphTensor::kDgamma, dgamma.raw()});
    bindings.push_back({GraphTensor::kDbeta, dbeta.raw()});
    if (!run(*entry, bindings, stream)) return false;
    if (args.accumulate) {
      take_gradient(dgamma, args.dgamma, true, stream);
      take_gradient(dbeta, args.dbeta, true, stream);
    }
    return true;
  }

  bool fuses_batch_norms(DType dtype) override {
    if (dtype != DType::kFloat16) return false;
    if (!fuses_) fuses_ = probe_fusions();
    return *fuses_;
  }

  std::string version() const override { return maker_->version(); }

 private:
  /// fp16 copies of a batch norm's scale and shift, bound where they are asked for.
  struct Scales {
    Scales(CudnnLibrary& library, const NormOnLoad& norm, Bindings& bindings, StreamHandle stream) {
      if (!norm) return;
      scale = library.scratch(norm.scale.shape(), DType::kFloat16);
      shift = library.scratch(norm.shift.shape(), DType::kFloat16);
      narrow_scales(norm.scale, norm.shift, scale, shift, stream);
      bindings.push_back({GraphTensor::kScale, scale.raw()});
      bindings.push_back({GraphTensor::kShift, shift.raw()});
    }
    Tensor scale, shift;
  };

  /// Looks for engines of every fusion. Nothing is compiled.
  bool probe_fusions() {
    for (const GraphSpec& spec : fusion_probes()) {
      std::string why;
      if (maker_->plan(spec, rules(), why)->candidates() > 0) continue;
      log::write(log::Level::kDebug, fmt::format("[cudnn] batch norms stay apart from convolutions: {}: no engine ({})", text(spec), why));
      return false;
    }
    return true;
  }

  PlanRules rules() const { return {.tf32 = settings_.tf32, .deterministic = settings_.deterministic}; }

  /// A graph's plan and the candidate that was chosen; without a plan the library has no way for it.
  struct Entry {
    GraphSpec spec;
    std::unique_ptr<GraphPlan> plan;
    int chosen = -1;
    std::size_t workspace = 0;
    bool timed = false;
  };

  template <class Args>
  Entry* find(const Args& args) {
    std::string why;
    const std::optional<GraphSpec> spec = spec_of(args, why);
    if (!spec) {
      if (refused_.insert(why).second)
        log::write(log::Level::kDebug, fmt::format("[cudnn] {} is not one graph of cuDNN's: {}", kName<Args>, why));
      return nullptr;
    }
    const auto [at, fresh] = entries_.try_emplace(*spec);
    Entry& entry = at->second;
    if (fresh) prepare(*spec, entry);
    return entry.plan ? &entry : nullptr;
  }

  void prepare(const GraphSpec& spec, Entry& entry) {
    entry.spec = spec;
    std::string why;
    entry.plan = maker_->plan(spec, rules(), why);
    for (int i = 0; i < entry.plan->candidates() && entry.chosen < 0; ++i) {
      if (entry.plan->finalise(i, why)) entry.chosen = i;
    }
    if (entry.chosen < 0) {
      entry.plan.reset();
      const bool in_parts = spec.kind == GraphKind::kConvolutionBias || is_fused(spec.kind);
      log::write(in_parts ? log::Level::kDebug : log::Level::kWarning,
                 fmt::format("[cudnn] {}: no engine ({}); {}", text(spec), why, in_parts ? "it runs in parts" : "an own kernel does it"));
      return;
    }
    entry.workspace = entry.plan->workspace(entry.chosen);
  }

  bool run(Entry& entry, const Bindings& bindings, StreamHandle stream) {
    for (const Binding& binding : bindings) {
      // cuDNN's engines were asked for tensors that start on 16 bytes.
      if (binding.data == nullptr || reinterpret_cast<std::uintptr_t>(binding.data) % 16 != 0) return false;
    }
    if (settings_.benchmark && !entry.timed && is_convolution(entry.spec.kind)) choose(entry, bindings, stream);
    issue(entry, entry.chosen, entry.workspace, bindings, stream);
    return true;
  }

  void issue(Entry& entry, int candidate, std::size_t bytes, const Bindings& bindings, StreamHandle stream) {
    const std::shared_ptr<Storage> workspace = bytes == 0 ? nullptr : workspaces_.workspace(bytes);
    entry.plan->run(candidate, bindings, workspace ? workspace->data() : nullptr, stream);
  }

  /// Times every candidate on the call's own tensors, whose output is written again afterwards, and keeps the fastest.
  void choose(Entry& entry, const Bindings& bindings, StreamHandle stream) {
    entry.timed = true;
    double best = 0.0;
    const int first = entry.chosen;
    for (int i = first; i < entry.plan->candidates(); ++i) {
      std::string why;
      if (i != first && !entry.plan->finalise(i, why)) continue;
      const std::size_t bytes = entry.plan->workspace(i);
      std::array<double, kTimings> times{};
      try {
        issue(entry, i, bytes, bindings, stream);  // loads the kernels
        for (double& time : times) {
          time = entry.plan->milliseconds(stream, [&] { issue(entry, i, bytes, bindings, stream); });
        }
      } catch (const Error& error) {
        if (i == first) throw;
        log::write(log::Level::kDebug, fmt::format("[cudnn] {}: {} left out: {}", text(entry.spec), entry.plan->name(i), error.what()));
        continue;
      }
      std::sort(times.begin(), times.end());
      if (i != first && times[kTimings / 2] >= best) continue;
      best = times[kTimings / 2];
      entry.chosen = i;
      entry.workspace = bytes;
    }
    log::write(log::Level::kDebug, fmt::format("[cudnn] {}: {} of {} candidates takes {:.3f} ms", text(entry.spec),
                                               entry.plan->name(entry.chosen), entry.plan->candidates(), best));
  }

  Tensor scratch(const Shape& shape, DType dtype) {
    return {workspaces_.workspace(static_cast<std::size_t>(shape.elements()) * size_of(dtype)), 0, shape, dtype};
  }

  LibrarySettings settings_;
  WorkspaceSource& workspaces_;
  std::unique_ptr<GraphMaker> maker_;
  std::map<GraphSpec, Entry> entries_;
  std::set<std::string> refused_;  ///< reasons that have been told
  std::optional<bool> fuses_;      ///< once it has been asked
};

}  // namespace

std::unique_ptr<Cudnn> make_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces, std::unique_ptr<GraphMaker> maker) {
  return std::make_unique<CudnnLibrary>(settings, workspaces, std::move(maker));
}

}  // namespace starling::cuda
