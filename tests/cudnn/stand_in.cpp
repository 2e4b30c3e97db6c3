#include "tests/cudnn/stand_in.h"

#include <cstring>
#include <limits>

#include "core/error.h"
#include "kernels/optimizer.h"

namespace starling::testing {

using cuda::GraphKind;
using cuda::GraphSpec;
using cuda::GraphTensor;

Backend& cpu() {
  static const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  return *backend;
}

namespace {

/// Bytes that a candidate asks for and fills, to show that it was given them.
std::size_t workspace_bytes(int candidate) { return static_cast<std::size_t>(candidate) * 64; }

class StandInPlan final : public cuda::GraphPlan {
 public:
  StandInPlan(StandIn& maker, const GraphSpec& spec, int candidates) : maker_(maker), spec_(spec), candidates_(candidates) {}
  int candidates() const override { return candidates_; }
  std::string name(int candidate) const override { return "candidate " + std::to_string(candidate); }
  bool finalise(int candidate, std::string& why) override {
    if (!maker_.cannot_finalise || !maker_.cannot_finalise(candidate)) return true;
    why = "cannot be finalised";
    return false;
  }
  std::size_t workspace(int candidate) const override { return workspace_bytes(candidate); }
  double milliseconds(cuda::StreamHandle, const std::function<void()>& work) override {
    work();
    return maker_.times.at(static_cast<std::size_t>(maker_.runs.back()));
  }

  void run(int candidate, const cuda::Bindings& bindings, void* workspace, cuda::StreamHandle) override {
    if (maker_.cannot_run && maker_.cannot_run(candidate)) fail(ExitCode::kInternal, "cudnn", "cannot run");
    maker_.runs.push_back(candidate);
    if (workspace_bytes(candidate) != 0) std::memset(workspace, 0xff, workspace_bytes(candidate));
    bindings_ = &bindings;
    used_ = 0;
    const auto& [n, h, w, c] = spec_.x;
    const auto& [m, p, q, o] = spec_.y;
    const Shape x{n, h, w, c}, y{m, p, q, o}, weight{o, spec_.kernel[0], spec_.kernel[1], c / spec_.groups}, channels{c};
    const Window2d window{spec_.kernel, spec_.stride, spec_.padding, spec_.dilation, spec_.groups};
    const DType io = spec_.dtype, wide = DType::kFloat32;
    switch (spec_.kind) {
      case GraphKind::kConvolution:
      case GraphKind::kConvolutionBias:
      case GraphKind::kConvolutionStatistics:
      case GraphKind::kNormConvolutionStatistics: {
        Conv2dForward args{.x = in(GraphTensor::kX, x, io), .weight = in(GraphTensor::kWeight, weight, io), .window = window};
        if (spec_.kind == GraphKind::kConvolutionBias) args.bias = in(GraphTensor::kBias, {o}, wide);
        args.y = Tensor(cpu(), y, wide);
        args.norm = norm_on_load();
        if (cuda::is_fused(spec_.kind)) {
          args.sum = Tensor(cpu(), {o}, wide);
          args.square_sum = Tensor(cpu(), {o}, wide);
        }
        cpu().conv2d_forward(args);
        out(GraphTensor::kY, args.y, io);
        if (args.sum) out(GraphTensor::kSum, args.sum, wide);
        if (args.sum) out(GraphTensor::kSquareSum, args.square_sum, wide);
        break;
      }
      case GraphKind::kConvolutionBackwardData:
      case GraphKind::kConvolutionBackwardDataNorm: {
        Conv2dBackwardData args{in(GraphTensor::kDy, y, io), in(GraphTensor::kWeight, weight, io), Tensor(cpu(), x, wide), window};
        if (cuda::is_fused(spec_.kind)) {
          args.norm = {.x = in(GraphTensor::kX, x, io),
                       .mean = in(GraphTensor::kMean, channels, wide),
                       .inv_std = in(GraphTensor::kInvStd, channels, wide),
                       .gamma = in(GraphTensor::kGamma, channels, wide),
                       .beta = in(GraphTensor::kBeta, channels, wide),
                       .sum_dy = Tensor(cpu(), channels, wide),
                       .sum_dy_xhat = Tensor(cpu(), channels, wide)};
        }
        cpu().conv2d_backward_data(args);
        out(GraphTensor::kDx, args.dx, io);
        if (!args.norm) break;
        out(GraphTensor::kDbeta, args.norm.sum_dy, wide);
        out(GraphTensor::kDgamma, args.norm.sum_dy_xhat, wide);
        for (const GraphTensor unread : {GraphTensor::kDyFactor, GraphTensor::kXFactor, GraphTensor::kOffset}) out(unread, nans(c), wide);
        break;
      }
      case GraphKind::kConvolutionBackwardWeights:
      case GraphKind::kNormConvolutionBackwardWeights: {
        const Tensor dweight(cpu(), weight, wide);
        cpu().conv2d_backward_weights({.x = in(GraphTensor::kX, x, io),
                                       .dy = in(GraphTensor::kDy, y, io),
                                       .dweight = dweight,
                                       .window = window,
                                       .norm = norm_on_load()});
        out(GraphTensor::kDweight, dweight, io);
        break;
      }
      case GraphKind::kBatchNorm: {
        BatchNormForward args{.x = in(GraphTensor::kX, x, io),
                              .gamma = in(GraphTensor::kGamma, channels, wide),
                              .beta = in(GraphTensor::kBeta, channels, wide)};
        if (spec_.residual) args.residual = in(GraphTensor::kResidual, x, io);
        args.y = Tensor(cpu(), x, wide);
        args.saved_mean = Tensor(cpu(), channels, wide);
        args.saved_inv_std = Tensor(cpu(), channels, wide);
        args.eps = static_cast<double>(spec_.eps);
        args.relu = spec_.relu;
        cpu().batch_norm_forward(args);
        out(GraphTensor::kY, args.y, io);
        out(GraphTensor::kMean, args.saved_mean, wide);
        out(GraphTensor::kInvStd, args.saved_inv_std, wide);
        break;
      }
      case GraphKind::kBatchNormBackward: {
        BatchNormBackward args{
            .x = in(GraphTensor::kX, x, io), .dy = in(GraphTensor::kDy, x, io), .gamma = in(GraphTensor::kGamma, channels, wide)};
        if (spec_.second_term) args.dy2 = in(GraphTensor::kDy2, x, io);
        args.relu = spec_.mask != cuda::ReluMask::kNone;
        if (spec_.mask == cuda::ReluMask::kFromX) args.beta = in(GraphTensor::kBeta, channels, wide);
        if (spec_.mask == cuda::ReluMask::kFromY) args.y = in(GraphTensor::kY, x, io);
        args.saved_mean = in(GraphTensor::kMean, channels, wide);
        args.saved_inv_std = in(GraphTensor::kInvStd, channels, wide);
        args.dx = Tensor(cpu(), x, wide);
        args.dgamma = Tensor(cpu(), channels, wide);
        args.dbeta = Tensor(cpu(), channels, wide);
        if (spec_.dresidual) args.dresidual = Tensor(cpu(), x, wide);
        cpu().batch_norm_backward(args);
        out(GraphTensor::kDx, args.dx, io);
        out(GraphTensor::kDgamma, args.dgamma, wide);
        out(GraphTensor::kDbeta, args.dbeta, wide);
        if (spec_.dresidual) out(GraphTensor::kDresidual, args.dresidual, io);
        break;
      }
    }
    require(used_ == bindings.size(), "test", "{}: {} of {} tensors were the graph's", cuda::text(spec_), used_, bindings.size());
  }

 private:
  void* pointer(GraphTensor id) {
    for (const cuda::Binding& binding : *bindings_) {
      if (binding.tensor == id) return ++used_, binding.data;
    }
    fail(ExitCode::kInternal, "test", "{}: tensor {} is not bound", cuda::text(spec_), static_cast<int>(id));
  }
  Tensor in(GraphTensor id, const Shape& shape, DType dtype) {
    const void* from = pointer(id);
    Tensor tensor(cpu(), shape, DType::kFloat32);
    float* to = tensor.data<float>();
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      if (dtype == DType::kFloat32) to[i] = static_cast<const float*>(from)[i];
      if (dtype == DType::kBFloat16) to[i] = static_cast<float>(static_cast<const BFloat16*>(from)[i]);
      if (dtype == DType::kFloat16) to[i] = static_cast<float>(static_cast<const Float16*>(from)[i]);
    }
    return tensor;
  }
  NormOnLoad norm_on_load() {
    if (!cuda::norms_on_load(spec_.kind)) return {};
    const Shape channels{spec_.x[3]};
    return {in(GraphTensor::kScale, channels, spec_.dtype), in(GraphTensor::kShift, channels, spec_.dtype)};
  }
  static Tensor nans(std::int64_t count) {
    const Tensor tensor(cpu(), {count}, DType::kFloat32);
    cpu().fill(tensor, std::numeric_limits<double>::quiet_NaN());
    return tensor;
  }
  void out(GraphTensor id, const Tensor& tensor, DType dtype) {
    void* to = pointer(id);
    const float* from = tensor.data<float>();
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      if (dtype == DType::kFloat32) static_cast<float*>(to)[i] = from[i];
      if (dtype == DType::kBFloat16) static_cast<BFloat16*>(to)[i] = BFloat16(from[i]);
      if (dtype == DType::kFloat16) static_cast<Float16*>(to)[i] = Float16(from[i]);
    }
  }

  StandIn& maker_;
  GraphSpec spec_;
  int candidates_;
  const cuda::Bindings* bindings_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace

std::unique_ptr<cuda::GraphPlan> StandIn::plan(const GraphSpec& spec, const cuda::PlanRules& rules_wanted, std::string& why) {
  ++planned[spec];
  rules = rules_wanted;
  const bool none = refuses && refuses(spec);
  if (none) why = "refused by the test";
  return std::make_unique<StandInPlan>(*this, spec, none ? 0 : candidates);
}

}  // namespace starling::testing
