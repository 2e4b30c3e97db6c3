#include "kernels/cuda/libraries/cudnn_spec.h"

#include <fmt/format.h>

#include <initializer_list>

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
  require(window.stride[0] > 0 && window.stride[1] > 0, "cudnn", "conv2d: a stride of {}×{}; needed: at least 1", window.stride[0],
          window.stride[1]);
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

GraphSpec batch_norm(GraphKind kind, const Tensor& x, const char* operation) {
  GraphSpec spec{.kind = kind, .x = channels_last(x, operation)};
  spec.dtype = x.dtype();
  spec.y = spec.x;
  return spec;
}

bool overlap(const Tensor& a, const Tensor& b) { return a && b && a.storage() == b.storage(); }

/// Whether cuDNN may have an engine for a convolution that carries out parts of a batch norm (tests/cudnn looks for more).
bool fusable(DType dtype, const Window2d& window, std::string& why) {
  if (dtype != DType::kFloat16) return why = "parts of a batch norm are carried out in fp16 alone", false;
  if (window.groups != 1) return why = "parts of a batch norm are carried out without groups alone", false;
  return true;
}

std::int64_t product(const std::array<std::int64_t, 4>& shape) { return shape[0] * shape[1] * shape[2] * shape[3]; }

std::string_view name_of(GraphTensor tensor) {
  constexpr std::string_view kNames[] = {"x",        "weight",    "bias",  "y",          "dy",        "dy2",      "dx",     "dweight",
                                         "residual", "gamma", "beta",       "mean",      "inv_std",  "dgamma", "dbeta",
                                         "scale",    "shift",     "sum",   "square_sum", "dy_factor", "x_factor", "offset"};
  return kNames[static_cast<std::size_t>(tensor) - 1];
}

/// Each of the tensors has one number of the parameters' dtype for each of the image's channels.
void check_norm(std::initializer_list<Tensor> tensors, const Tensor& image) {
  for (const Tensor& tensor : tensors) check_per_channel(tensor, image, "conv2d: a batch norm's tensor");
}

/// How many numbers of which dtype a graph has in a tensor.
std::pair<std::int64_t, DType> numbers_in(const GraphSpec& spec, GraphTensor tensor) {
  switch (tensor) {
    case GraphTensor::kX:
    case GraphTensor::kDx:
    case GraphTensor::kDy2:
    case GraphTensor::kResidual: return {product(spec.x), spec.dtype};
    case GraphTensor::kY:
    case GraphTensor::kDy: return {product(spec.y), spec.dtype};
    case GraphTensor::kWeight:
    case GraphTensor::kDweight: return {spec.y[3] * spec.kernel[0] * spec.kernel[1] * (spec.x[3] / spec.groups), spec.dtype};
    case GraphTensor::kScale:
    case GraphTensor::kShift: return {spec.x[3], spec.dtype};
    case GraphTensor::kBias:
    case GraphTensor::kSum:
    case GraphTensor::kSquareSum: return {spec.y[3], DType::kFloat32};
    default: return {spec.x[3], DType::kFloat32};
  }
}

}  // namespace

void check_per_channel(const Tensor& tensor, const Tensor& image, std::string_view name) {
  require(image && image.shape().rank() > 0, "cudnn", "{}: the image is missing", name);
  const std::int64_t channels = image.shape().back();
  const DType dtype = is_low_precision(image.dtype()) ? DType::kFloat32 : image.dtype();
  require(tensor && tensor.elements() == channels && tensor.dtype() == dtype, "cudnn", "{} must have {} {} elements", name, channels,
          name_of(dtype));
}

void check_bindings(const GraphSpec& spec, const Bindings& bindings) {
  for (const Binding& binding : bindings) {
    const auto [elements, dtype] = numbers_in(spec, binding.tensor);
    if (binding.elements < 0 || (binding.elements == elements && binding.dtype == dtype)) continue;
    fail(ExitCode::kInternal, "cudnn", "{}: {} has {} {} numbers; needed: {} {}", text(spec), name_of(binding.tensor), binding.elements,
         name_of(binding.dtype), elements, name_of(dtype));
  }
}

std::string text(const GraphSpec& spec) {
  constexpr std::string_view kNames[] = {"conv2d forward",
                                         "conv2d forward with bias",
                                         "conv2d forward with statistics",
                                         "batch norm, ReLU and conv2d forward with statistics",
                                         "conv2d backward data",
                                         "conv2d backward data with batch norm sums",
                                         "conv2d backward weights",
                                         "batch norm, ReLU and conv2d backward weights",
                                         "batch norm forward",
                                         "batch norm backward"};
  std::string line = fmt::format("{} {} {}", kNames[static_cast<std::size_t>(spec.kind)], name_of(spec.dtype), fmt::join(spec.x, "x"));
  if (is_convolution(spec.kind)) {
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
  return line;
}

std::optional<GraphSpec> spec_of(const Conv2dForward& args, std::string& why) {
  require(static_cast<bool>(args.x), "cudnn", "conv2d: x is missing");
  GraphKind kind = args.bias ? GraphKind::kConvolutionBias : GraphKind::kConvolution;
  require(static_cast<bool>(args.sum) == static_cast<bool>(args.square_sum), "cudnn", "conv2d: one of the two sums is missing");
  if (args.norm || args.sum) {
    kind = args.norm ? GraphKind::kNormConvolutionStatistics : GraphKind::kConvolutionStatistics;
    if (args.norm) check_norm({args.norm.scale, args.norm.shift}, args.x);
    if (args.sum) check_norm({args.sum, args.square_sum}, args.y);
    if (!fusable(args.x.dtype(), args.window, why)) return std::nullopt;
    if (args.bias) return why = "no engine adds a bias and gathers statistics", std::nullopt;
    if (!args.sum) return why = "no engine applies a batch norm without gathering statistics", std::nullopt;
  }
  return convolution(kind, args.x, args.weight, args.y, args.window, args.x.dtype(), why);
}

std::optional<GraphSpec> spec_of(const Conv2dBackwardData& args, std::string& why) {
  require(static_cast<bool>(args.dy), "cudnn", "conv2d: dy is missing");
  GraphKind kind = GraphKind::kConvolutionBackwardData;
  if (const NormGradient& norm = args.norm) {
    kind = GraphKind::kConvolutionBackwardDataNorm;
    require(args.dx && norm.x.shape() == args.dx.shape() && norm.x.dtype() == args.dx.dtype(), "cudnn",
            "conv2d: what was normalised has another shape or dtype than dx");
    if (!fusable(args.dy.dtype(), args.window, why)) return std::nullopt;
    if (!norm.gamma || !norm.beta) return why = "the batch norm has no gamma or no beta", std::nullopt;
    if (overlap(args.dx, norm.x)) return why = "it works in place", std::nullopt;
    check_norm({norm.mean, norm.inv_std, norm.gamma, norm.beta, norm.sum_dy, norm.sum_dy_xhat}, args.dx);
  }
  return convolution(kind, args.dx, args.weight, args.dy, args.window, args.dy.dtype(), why);
}

std::optional<GraphSpec> spec_of(const Conv2dBackwardWeights& args, std::string& why) {
  require(static_cast<bool>(args.dy), "cudnn", "conv2d: dy is missing");
  GraphKind kind = GraphKind::kConvolutionBackwardWeights;
  if (args.norm) {
    kind = GraphKind::kNormConvolutionBackwardWeights;
    check_norm({args.norm.scale, args.norm.shift}, args.x);
    if (!fusable(args.dy.dtype(), args.window, why)) return std::nullopt;
  }
  return convolution(kind, args.x, args.dweight, args.dy, args.window, args.dy.dtype(), why);
}

std::optional<GraphSpec> spec_of(const BatchNormForward& args, std::string& why) {
  GraphSpec spec = batch_norm(GraphKind::kBatchNorm, args.x, "batch norm forward");
  spec.eps = static_cast<float>(args.eps);
  spec.residual = static_cast<bool>(args.residual);
  spec.relu = args.relu;
  if (!graph_type(spec.dtype, why)) return std::nullopt;
  if (!args.training) return why = "inference reads the running statistics", std::nullopt;
  if (args.relu && args.ceiling != kNoCeiling) return why = "a ReLU with a ceiling is left to the own kernels", std::nullopt;
  if (!args.gamma || !args.beta) return why = "gamma or beta is missing", std::nullopt;
  if (spec.residual && !spec.relu) return why = "a residual without ReLU is left to the own kernels", std::nullopt;
  if (args.x.elements() == 0) return why = "it is empty", std::nullopt;
  return spec;
}

std::optional<GraphSpec> spec_of(const BatchNormBackward& args, std::string& why) {
  GraphSpec spec = batch_norm(GraphKind::kBatchNormBackward, args.x, "batch norm backward");
  spec.second_term = static_cast<bool>(args.dy2);
  spec.relu = args.relu;
  if (!graph_type(spec.dtype, why)) return std::nullopt;
  if (!args.training) return why = "the statistics are constants", std::nullopt;
  if (args.relu && args.ceiling != kNoCeiling) return why = "a ReLU with a ceiling is left to the own kernels", std::nullopt;
  if (!args.gamma || !args.dx || !args.dgamma || !args.dbeta) return why = "gamma or one of the gradients is missing", std::nullopt;
  // cuDNN 9.14 and 9.19 plan dy·(y > 0) before a batch norm's gradient, but the engine reads a mask of bits that nobody gave: an illegal
  // address on an H100.
  if (args.dresidual || (args.relu && !args.beta)) return why = "a residual, or a mask from y, is left to the own kernels", std::nullopt;
  // cuDNN does not promise that a batch norm may overwrite what it reads.
  if (overlap(args.dx, args.x) || overlap(args.dx, args.dy) || overlap(args.dx, args.dy2)) return why = "it works in place", std::nullopt;
  if (args.x.elements() == 0) return why = "it is empty", std::nullopt;
  return spec;
}

std::vector<GraphSpec> fusion_probes() {
  std::vector<GraphSpec> specs;
  for (const GraphKind kind : {GraphKind::kConvolutionStatistics, GraphKind::kNormConvolutionStatistics,
                               GraphKind::kConvolutionBackwardDataNorm, GraphKind::kNormConvolutionBackwardWeights}) {
    specs.push_back({.kind = kind,
                     .dtype = DType::kFloat16,
                     .x = {32, 56, 56, 64},
                     .y = {32, 56, 56, 64},
                     .kernel = {3, 3},
                     .stride = {1, 1},
                     .padding = {1, 1},
                     .dilation = {1, 1}});
  }
  return specs;
}

}  // namespace starling::cuda
