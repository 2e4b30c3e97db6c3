#include "kernels/cuda/cudnn_spec.h"

#include <fmt/format.h>

#include "core/error.h"

namespace starling::cuda {

namespace {

bool graph_type(DType dtype, std::string& why) {
  if (dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16) return true;
  why = fmt::format("{} is left to the own kernels", name_of(dtype));
  return false;
}

std::array<std::int64_t, 4> image(const Tensor& x, const char* operation, const char* name) {
  require(static_cast<bool>(x) && x.shape().rank() == 4, "cudnn", "{}: {} must be N×H×W×C", operation, name);
  const Shape& shape = x.shape();
  return {shape[0], shape[1], shape[2], shape[3]};
}

/// What the three convolutions share; tensors by the names that the forward pass gives them.
std::optional<GraphSpec> convolution(GraphKind kind, const Tensor& x, const Tensor& weight, const Tensor& y, const Window2d& window,
                                     DType dtype, std::string& why) {
  constexpr const char* kName = "conv2d";
  GraphSpec spec{.kind = kind, .dtype = dtype, .x = image(x, kName, "x"), .y = image(y, kName, "y")};
  spec.kernel = window.kernel;
  spec.stride = window.stride;
  spec.padding = window.padding;
  spec.dilation = window.dilation;
  spec.groups = window.groups;
  require(window.groups > 0 && weight && weight.shape() == Shape{spec.y[3], window.kernel[0], window.kernel[1], spec.x[3] / window.groups},
          "cudnn", "conv2d: the weight's shape does not fit {} and {}", x.shape().text(), y.shape().text());
  require(spec.x[0] == spec.y[0] && window.output(0, spec.x[1]) == spec.y[1] && window.output(1, spec.x[2]) == spec.y[2], "cudnn",
          "conv2d: {} does not follow from {}", y.shape().text(), x.shape().text());
  if (x.elements() == 0 || y.elements() == 0) return why = "it is empty", std::nullopt;
  if (!graph_type(dtype, why)) return std::nullopt;
  return spec;
}

/// N×H×W×C, and R×C as R×1×1×C.
std::array<std::int64_t, 4> channels_last(const Tensor& x, const char* operation) {
  require(static_cast<bool>(x) && (x.shape().rank() == 4 || x.shape().rank() == 2), "cudnn", "{}: x must be N×H×W×C or R×C", operation);
  const Shape& shape = x.shape();
  if (shape.rank() == 2) return {shape[0], 1, 1, shape[1]};
  return {shape[0], shape[1], shape[2], shape[3]};
}

bool overlap(const Tensor& a, const Tensor& b) { return a && b && a.storage() == b.storage(); }

}  // namespace

std::string text(const GraphSpec& spec) {
  constexpr std::string_view kNames[] = {"conv2d forward",          "conv2d forward with bias", "conv2d backward data",
                                         "conv2d backward weights", "batch norm forward",       "batch norm backward"};
  std::string line = fmt::format("{} {} {}", kNames[static_cast<std::size_t>(spec.kind)], name_of(spec.dtype), fmt::join(spec.x, "x"));
  if (spec.kind <= GraphKind::kConvolutionBackwardWeights) {
    line += fmt::format(" -> {} kernel {}", fmt::join(spec.y, "x"), fmt::join(spec.kernel, "x"));
    if (spec.stride != std::array<std::int64_t, 2>{1, 1}) line += fmt::format(" stride {}", fmt::join(spec.stride, "x"));
    if (spec.padding != std::array<std::int64_t, 2>{0, 0}) line += fmt::format(" padding {}", fmt::join(spec.padding, "x"));
    if (spec.dilation != std::array<std::int64_t, 2>{1, 1}) line += fmt::format(" dilation {}", fmt::join(spec.dilation, "x"));
    if (spec.groups != 1) line += fmt::format(" groups {}", spec.groups);
    return line;
  }
  if (spec.residual) line += " + residual";
  if (spec.relu) line += " + ReLU";
  if (spec.second_term) line += " two terms";
  if (spec.mask != ReluMask::kNone) line += spec.mask == ReluMask::kFromY ? " masked by y" : " masked from x";
  if (spec.dresidual) line += " + dresidual";
  return line;
}

std::optional<GraphSpec> spec_of(const Conv2dForward& args, std::string& why) {
  require(static_cast<bool>(args.x), "cudnn", "conv2d: x is missing");
  return convolution(args.bias ? GraphKind::kConvolutionBias : GraphKind::kConvolution, args.x, args.weight, args.y, args.window,
                     args.x.dtype(), why);
}

std::optional<GraphSpec> spec_of(const Conv2dBackwardData& args, std::string& why) {
  require(static_cast<bool>(args.dy), "cudnn", "conv2d: dy is missing");
  return convolution(GraphKind::kConvolutionBackwardData, args.dx, args.weight, args.dy, args.window, args.dy.dtype(), why);
}

std::optional<GraphSpec> spec_of(const Conv2dBackwardWeights& args, std::string& why) {
  require(static_cast<bool>(args.dy), "cudnn", "conv2d: dy is missing");
  return convolution(GraphKind::kConvolutionBackwardWeights, args.x, args.dweight, args.dy, args.window, args.dy.dtype(), why);
}

std::optional<GraphSpec> spec_of(const BatchNormForward& args, std::string& why) {
  GraphSpec spec{.kind = GraphKind::kBatchNorm, .x = channels_last(args.x, "batch norm forward")};
  spec.dtype = args.x.dtype();
  spec.y = spec.x;
  spec.eps = static_cast<float>(args.eps);
  spec.residual = static_cast<bool>(args.residual);
  spec.relu = args.relu;
  if (!graph_type(spec.dtype, why)) return std::nullopt;
  if (!args.training) return why = "inference reads the running statistics", std::nullopt;
  if (!args.gamma || !args.beta) return why = "gamma or beta is missing", std::nullopt;
  if (spec.residual && !spec.relu) return why = "a residual without ReLU is left to the own kernels", std::nullopt;
  if (args.x.elements() == 0) return why = "it is empty", std::nullopt;
  return spec;
}

std::optional<GraphSpec> spec_of(const BatchNormBackward& args, std::string& why) {
  GraphSpec spec{.kind = GraphKind::kBatchNormBackward, .x = channels_last(args.x, "batch norm backward")};
  spec.dtype = args.x.dtype();
  spec.y = spec.x;
  spec.second_term = static_cast<bool>(args.dy2);
  spec.dresidual = static_cast<bool>(args.dresidual);
  if (args.relu) spec.mask = args.beta ? ReluMask::kFromX : ReluMask::kFromY;
  if (!graph_type(spec.dtype, why)) return std::nullopt;
  if (!args.training) return why = "the statistics are constants", std::nullopt;
  if (!args.gamma || !args.dx || !args.dgamma || !args.dbeta) return why = "gamma or one of the gradients is missing", std::nullopt;
  // cuDNN does not promise that a batch norm may overwrite what it reads.
  for (const Tensor& to : {args.dx, args.dresidual}) {
    if (overlap(to, args.x) || overlap(to, args.y) || overlap(to, args.dy) || overlap(to, args.dy2)) {
      return why = "it works in place", std::nullopt;
    }
  }
  if (spec.dresidual && spec.mask != ReluMask::kFromY)
    return why = "dresidual without a mask from y is left to the own kernels", std::nullopt;
  if (args.x.elements() == 0) return why = "it is empty", std::nullopt;
  return spec;
}

}  // namespace starling::cuda
