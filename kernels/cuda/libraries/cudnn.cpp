#include "kernels/cuda/libraries/cudnn.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "kernels/cuda/libraries/cudnn_finish.h"
#include "kernels/cuda/libraries/cudnn_plans.h"

namespace starling::cuda {

namespace {

template <class Args>
constexpr std::string_view kName = "conv2d";
template <>
constexpr std::string_view kName<BatchNormForward> = "batch norm forward";
template <>
constexpr std::string_view kName<BatchNormBackward> = "batch norm backward";

/// A missing tensor has no address, and no graph takes that.
Binding bind(GraphTensor as, const Tensor& tensor) {
  if (!tensor) return {as, nullptr};
  return {as, tensor.raw(), tensor.elements(), tensor.dtype()};
}

/// cuDNN's engines were asked for tensors that start on 16 bytes.
bool aligned(const Bindings& bindings) {
  return std::all_of(bindings.begin(), bindings.end(), [](const Binding& binding) {
    return binding.data != nullptr && reinterpret_cast<std::uintptr_t>(binding.data) % 16 == 0;
  });
}

/// Parameters of batch norms; a missing one is for spec_of() to refuse.
bool fp32(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* tensor) { return !*tensor || tensor->dtype() == DType::kFloat32; });
}

class CudnnLibrary final : public Cudnn {
 public:
  CudnnLibrary(const LibrarySettings& settings, WorkspaceSource& workspaces, std::unique_ptr<GraphMaker> maker)
      : workspaces_(workspaces), plans_(settings, workspaces, std::move(maker)) {}

  bool conv2d_forward(const Conv2dForward& args, StreamHandle stream) override {
    Bindings bindings{bind(GraphTensor::kX, args.x), bind(GraphTensor::kWeight, args.weight), bind(GraphTensor::kY, args.y)};
    if (args.norm || args.sum) {  // with other parts of a batch norm than a graph has, or a bias: the backend puts it together
      bindings.push_back(bind(GraphTensor::kSum, args.sum));
      bindings.push_back(bind(GraphTensor::kSquareSum, args.square_sum));
      Plan* plan = find(args, bindings);
      if (!plan) return false;
      if (args.norm) {
        const LowScales low = narrowed(args.norm, stream);
        bind_scales(low, bindings);
        plans_.run(*plan, bindings, stream);
        keep(args.norm, low);
      } else {
        plans_.run(*plan, bindings, stream);
      }
      return true;
    }
    if (args.bias) {
      check_per_channel(args.bias, args.y, "conv2d: the bias");
      Bindings all = bindings;
      all.push_back(bind(GraphTensor::kBias, args.bias));
      if (Plan* plan = find(args, all)) {
        plans_.run(*plan, all, stream);
        return true;
      }
    }
    // Without a bias; where no engine adds it, a pass of our own does.
    Conv2dForward plain = args;
    plain.bias = {};
    Plan* plan = find(plain, bindings);
    if (!plan) return false;
    plans_.run(*plan, bindings, stream);
    if (args.bias) add_channel_bias(args.y, args.bias, stream);
    return true;
  }

  bool conv2d_backward_data(const Conv2dBackwardData& args, StreamHandle stream) override {
    Bindings bindings{bind(GraphTensor::kDy, args.dy), bind(GraphTensor::kWeight, args.weight), bind(GraphTensor::kDx, args.dx)};
    const NormGradient& norm = args.norm;
    if (norm) {
      bindings.insert(bindings.end(),
                      {bind(GraphTensor::kX, norm.x), bind(GraphTensor::kMean, norm.mean), bind(GraphTensor::kInvStd, norm.inv_std),
                       bind(GraphTensor::kGamma, norm.gamma), bind(GraphTensor::kBeta, norm.beta),
                       bind(GraphTensor::kDgamma, norm.sum_dy_xhat), bind(GraphTensor::kDbeta, norm.sum_dy)});
    }
    Plan* plan = find(args, bindings);
    if (!plan) return false;
    Tensor factors;
    if (norm) {
      // The engines' three factors are for a pass that BatchNormBackwardApply does with factors of its own.
      const std::int64_t padded = (norm.mean.elements() + 3) / 4 * 4;
      factors = scratch({3, padded}, DType::kFloat32);
      float* unused = factors.data<float>();
      bindings.insert(
          bindings.end(),
          {{GraphTensor::kDyFactor, unused}, {GraphTensor::kXFactor, unused + padded}, {GraphTensor::kOffset, unused + 2 * padded}});
    }
    plans_.run(*plan, bindings, stream);
    return true;
  }

  bool conv2d_backward_weights(const Conv2dBackwardWeights& args, StreamHandle stream) override {
    const DType dtype = args.x.dtype();
    // Engines write gradients of x's type alone, and add to none.
    const auto fits = [&](const Tensor& to) { return !args.accumulate && to && to.dtype() == dtype; };
    const bool in_low = fits(args.dweight_low), direct = in_low || fits(args.dweight);
    if (!direct && args.dweight && args.dweight.dtype() != DType::kFloat32) return false;
    Tensor result = in_low ? args.dweight_low : direct ? args.dweight : Tensor();
    Bindings bindings{bind(GraphTensor::kX, args.x), bind(GraphTensor::kDy, args.dy)};
    if (direct) bindings.push_back(bind(GraphTensor::kDweight, result));
    Plan* plan = find(args, bindings);
    if (!plan) return false;
    if (!direct) {
      result = scratch(args.dweight.shape(), dtype);
      bindings.push_back(bind(GraphTensor::kDweight, result));
    }
    LowScales low;
    if (args.norm) {
      low = kept(args.norm);
      if (!low.scale) low = narrowed(args.norm, stream);
      bind_scales(low, bindings);
    }
    plans_.run(*plan, bindings, stream);
    if (in_low) {
      *args.in_low = true;
    } else if (!direct) {
      take_gradient(result, args.dweight, args.accumulate, stream);
    }
    return true;
  }

  bool batch_norm_forward(const BatchNormForward& args, StreamHandle stream) override {
    if (!fp32({&args.gamma, &args.beta, &args.saved_mean, &args.saved_inv_std})) return false;
    Bindings bindings{bind(GraphTensor::kX, args.x),       bind(GraphTensor::kGamma, args.gamma),
                      bind(GraphTensor::kBeta, args.beta), bind(GraphTensor::kMean, args.saved_mean),
                      bind(GraphTensor::kY, args.y),       bind(GraphTensor::kInvStd, args.saved_inv_std)};
    if (args.residual) bindings.push_back(bind(GraphTensor::kResidual, args.residual));
    Plan* plan = find(args, bindings);
    if (!plan) return false;
    plans_.run(*plan, bindings, stream);
    return true;
  }

  bool batch_norm_backward(const BatchNormBackward& args, StreamHandle stream) override {
    if (!fp32({&args.gamma, &args.saved_mean, &args.saved_inv_std, &args.dgamma, &args.dbeta})) return false;
    Bindings bindings{bind(GraphTensor::kX, args.x),         bind(GraphTensor::kDy, args.dy),
                      bind(GraphTensor::kGamma, args.gamma), bind(GraphTensor::kMean, args.saved_mean),
                      bind(GraphTensor::kDx, args.dx),       bind(GraphTensor::kInvStd, args.saved_inv_std)};
    if (args.dy2) bindings.push_back(bind(GraphTensor::kDy2, args.dy2));
    if (args.relu && args.beta) bindings.push_back(bind(GraphTensor::kBeta, args.beta));
    if (!args.accumulate) {
      bindings.push_back(bind(GraphTensor::kDgamma, args.dgamma));
      bindings.push_back(bind(GraphTensor::kDbeta, args.dbeta));
    }
    Plan* plan = find(args, bindings);
    if (!plan) return false;
    Tensor dgamma, dbeta;
    if (args.accumulate) {
      dgamma = scratch(args.dgamma.shape(), DType::kFloat32);
      dbeta = scratch(args.dbeta.shape(), DType::kFloat32);
      bindings.push_back(bind(GraphTensor::kDgamma, dgamma));
      bindings.push_back(bind(GraphTensor::kDbeta, dbeta));
    }
    plans_.run(*plan, bindings, stream);
    if (args.accumulate) {
      take_gradient(dgamma, args.dgamma, true, stream);
      take_gradient(dbeta, args.dbeta, true, stream);
    }
    return true;
  }

  bool fuses_batch_norms(DType dtype) override { return dtype == DType::kFloat16 && plans_.fuses(); }

  std::string version() const override { return plans_.version(); }

 private:
  using Plan = CudnnPlans::Entry;

  /// fp16 copies of a batch norm's scale and shift.
  struct LowScales {
    Tensor scale, shift;
  };
  LowScales narrowed(const NormOnLoad& norm, StreamHandle stream) {
    LowScales low{scratch(norm.scale.shape(), DType::kFloat16), scratch(norm.shift.shape(), DType::kFloat16)};
    narrow_scales(norm.scale, norm.shift, low.scale, low.shift, stream);
    return low;
  }
  static void bind_scales(const LowScales& low, Bindings& bindings) {
    bindings.push_back(bind(GraphTensor::kScale, low.scale));
    bindings.push_back(bind(GraphTensor::kShift, low.shift));
  }
  /// A weight gradient has the scale and shift of its forward pass, and so that one's copies. They live at least as long as these tensors,
  /// which the weight gradient's stream may still read when the call returns.
  struct Kept {
    std::weak_ptr<Storage> scale, shift;
    LowScales low;
  };
  void keep(const NormOnLoad& norm, const LowScales& low) {
    std::erase_if(kept_, [](const auto& entry) { return entry.second.scale.expired() || entry.second.shift.expired(); });
    kept_[{norm.scale.raw(), norm.shift.raw()}] = {norm.scale.storage(), norm.shift.storage(), low};
  }
  LowScales kept(const NormOnLoad& norm) const {
    const auto at = kept_.find({norm.scale.raw(), norm.shift.raw()});
    if (at == kept_.end()) return {};
    const Kept& found = at->second;
    const bool same = found.scale.lock() == norm.scale.storage() && found.shift.lock() == norm.shift.storage();
    return same ? found.low : LowScales{};
  }

  /// The plan for a call on these tensors, those that the library adds left out. What cannot run is not planned: that may take seconds.
  template <class Args>
  Plan* find(const Args& args, const Bindings& bindings) {
    std::string why;
    const std::optional<GraphSpec> spec = spec_of(args, why);
    if (!spec) {
      if (refused_.insert(why).second)
        log::write(log::Level::kDebug, fmt::format("[cudnn] {} is not one graph of cuDNN's: {}", kName<Args>, why));
      return nullptr;
    }
    check_bindings(*spec, bindings);
    return aligned(bindings) ? plans_.find(*spec) : nullptr;
  }

  Tensor scratch(const Shape& shape, DType dtype) {
    return {workspaces_.workspace(static_cast<std::size_t>(shape.elements()) * size_of(dtype)), 0, shape, dtype};
  }

  WorkspaceSource& workspaces_;
  CudnnPlans plans_;
  std::map<std::pair<const void*, const void*>, Kept> kept_;
  std::set<std::string> refused_;  ///< reasons that have been told
};

}  // namespace

std::unique_ptr<Cudnn> make_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces, std::unique_ptr<GraphMaker> maker) {
  return std::make_unique<CudnnLibrary>(settings, workspaces, std::move(maker));
}

}  // namespace starling::cuda
