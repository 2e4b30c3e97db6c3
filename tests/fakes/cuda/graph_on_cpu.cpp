#include "tests/fakes/cuda/graph_on_cpu.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace starling::cuda::shim {

namespace {

/// Numbers from one type into another.
template <class From, class To>
void convert(const void* from, void* to, std::int64_t n) {
  const auto* source = static_cast<const From*>(from);
  std::transform(source, source + n, static_cast<To*>(to), [](From x) { return static_cast<To>(x); });
}
/// Numbers of `dtype` as fp32, or fp64 where they are that.
Tensor widened(const void* from, const Shape& shape, DType dtype, Backend& cpu) {
  Tensor tensor(cpu, shape, is_low_precision(dtype) ? DType::kFloat32 : dtype);
  switch (dtype) {
    case DType::kBFloat16: convert<BFloat16, float>(from, tensor.raw(), tensor.elements()); break;
    case DType::kFloat16: convert<Float16, float>(from, tensor.raw(), tensor.elements()); break;
    default: std::memcpy(tensor.raw(), from, tensor.bytes());
  }
  return tensor;
}
/// And back, rounded once.
void store(const Tensor& from, void* to, DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return convert<float, BFloat16>(from.raw(), to, from.elements());
    case DType::kFloat16: return convert<float, Float16>(from.raw(), to, from.elements());
    default: std::memcpy(to, from.raw(), from.bytes());
  }
}

class GraphOnCpu {
 public:
  GraphOnCpu(const GraphSpec& spec, const Bindings& bindings, Backend& cpu) : spec_(spec), bindings_(bindings), cpu_(cpu) {}

  void run() {
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
        args.y = Tensor(cpu_, y, wide);
        args.norm = norm_on_load();
        if (is_fused(spec_.kind)) {
          args.sum = Tensor(cpu_, {o}, wide);
          args.square_sum = Tensor(cpu_, {o}, wide);
        }
        cpu_.conv2d_forward(args);
        out(GraphTensor::kY, args.y, io);
        if (args.sum) out(GraphTensor::kSum, args.sum, wide);
        if (args.sum) out(GraphTensor::kSquareSum, args.square_sum, wide);
        break;
      }
      case GraphKind::kConvolutionBackwardData:
      case GraphKind::kConvolutionBackwardDataNorm: {
        Conv2dBackwardData args{in(GraphTensor::kDy, y, io), in(GraphTensor::kWeight, weight, io), Tensor(cpu_, x, wide), window};
        if (is_fused(spec_.kind)) {
          args.norm = {.x = in(GraphTensor::kX, x, io),
                       .mean = in(GraphTensor::kMean, channels, wide),
                       .inv_std = in(GraphTensor::kInvStd, channels, wide),
                       .gamma = in(GraphTensor::kGamma, channels, wide),
                       .beta = in(GraphTensor::kBeta, channels, wide),
                       .sum_dy = Tensor(cpu_, channels, wide),
                       .sum_dy_xhat = Tensor(cpu_, channels, wide)};
        }
        cpu_.conv2d_backward_data(args);
        out(GraphTensor::kDx, args.dx, io);
        if (!args.norm) break;
        out(GraphTensor::kDbeta, args.norm.sum_dy, wide);
        out(GraphTensor::kDgamma, args.norm.sum_dy_xhat, wide);
        for (const GraphTensor unread : {GraphTensor::kDyFactor, GraphTensor::kXFactor, GraphTensor::kOffset}) out(unread, nans(c), wide);
        break;
      }
      case GraphKind::kConvolutionBackwardWeights:
      case GraphKind::kNormConvolutionBackwardWeights: {
        const Tensor dweight(cpu_, weight, wide);
        cpu_.conv2d_backward_weights({.x = in(GraphTensor::kX, x, io),
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
        args.y = Tensor(cpu_, x, wide);
        args.saved_mean = Tensor(cpu_, channels, wide);
        args.saved_inv_std = Tensor(cpu_, channels, wide);
        args.eps = static_cast<double>(spec_.eps);
        args.relu = spec_.relu;
        cpu_.batch_norm_forward(args);
        out(GraphTensor::kY, args.y, io);
        out(GraphTensor::kMean, args.saved_mean, wide);
        out(GraphTensor::kInvStd, args.saved_inv_std, wide);
        break;
      }
      case GraphKind::kBatchNormBackward: {
        BatchNormBackward args{
            .x = in(GraphTensor::kX, x, io), .dy = in(GraphTensor::kDy, x, io), .gamma = in(GraphTensor::kGamma, channels, wide)};
        if (spec_.second_term) args.dy2 = in(GraphTensor::kDy2, x, io);
        args.relu = spec_.relu;
        if (spec_.relu) args.beta = in(GraphTensor::kBeta, channels, wide);
        args.saved_mean = in(GraphTensor::kMean, channels, wide);
        args.saved_inv_std = in(GraphTensor::kInvStd, channels, wide);
        args.dx = Tensor(cpu_, x, wide);
        args.dgamma = Tensor(cpu_, channels, wide);
        args.dbeta = Tensor(cpu_, channels, wide);
        cpu_.batch_norm_backward(args);
        out(GraphTensor::kDx, args.dx, io);
        out(GraphTensor::kDgamma, args.dgamma, wide);
        out(GraphTensor::kDbeta, args.dbeta, wide);
        break;
      }
    }
    require(used_ == bindings_.size(), "shim", "{}: {} of {} tensors were the graph's", text(spec_), used_, bindings_.size());
  }

 private:
  void* pointer(GraphTensor id) {
    for (const Binding& binding : bindings_) {
      if (binding.tensor == id) return ++used_, binding.data;
    }
    fail(ExitCode::kInternal, "shim", "{}: tensor {} is not bound", text(spec_), static_cast<int>(id));
  }
  Tensor in(GraphTensor id, const Shape& shape, DType dtype) { return widened(pointer(id), shape, dtype, cpu_); }
  NormOnLoad norm_on_load() {
    if (!norms_on_load(spec_.kind)) return {};
    const Shape channels{spec_.x[3]};
    return {in(GraphTensor::kScale, channels, spec_.dtype), in(GraphTensor::kShift, channels, spec_.dtype)};
  }
  Tensor nans(std::int64_t count) {
    const Tensor tensor(cpu_, {count}, DType::kFloat32);
    cpu_.fill(tensor, std::numeric_limits<double>::quiet_NaN());
    return tensor;
  }
  void out(GraphTensor id, const Tensor& tensor, DType dtype) { store(tensor, pointer(id), dtype); }

  const GraphSpec& spec_;
  const Bindings& bindings_;
  Backend& cpu_;
  std::size_t used_ = 0;
};

}  // namespace

void carry_out(const GraphSpec& spec, const Bindings& bindings, Backend& cpu) { GraphOnCpu(spec, bindings, cpu).run(); }

void multiply(const Matmul& args, Backend& cpu) {
  const auto wide = [&](const Tensor& from) { return from ? widened(from.raw(), from.shape(), from.dtype(), cpu) : Tensor(); };
  Matmul product = args;
  product.a = wide(args.a);
  product.b = wide(args.b);
  product.bias = wide(args.bias);
  product.c = wide(args.c);  // where nothing is added to it, its numbers do not count
  cpu.matmul(product);
  store(product.c, args.c.raw(), args.c.dtype());
}

}  // namespace starling::cuda::shim
