#include "kernels/cuda/libraries/cudnn_spec.h"

#include <fmt/format.h>

#include "core/error.h"

namespace starling::cuda {

namespace {

bool graph_type(DType dtype, std::string& why) {
  if (dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16)
    return true;
  why = fmt::format("{} is left to the own kernels", name_of(dtype));
  return false;
}

std::array<std::int64_t, 4> image(const Tensor& x, const char* name) {
  require(static_cast<bool>(x) && x.shape().rank() == 4, "cudnn", "conv2d: {} must be N×H×W×C",
          name);
  const Shape& shape = x.shape();
  return {shape[0], shape[1], shape[2], shape[3]};
}

/// What the three convolutions share; tensors by the names that the forward pass gives them.
std::optional<GraphSpec> convolution(GraphKind kind, const Tensor& x, const Tensor& weight,
                                     const Tensor& y, const Window2d& window, DType dtype,
                                     std::string& why) {
  GraphSpec spec{.kind = kind, .dtype = dtype, .x = image(x, "x"), .y = image(y, "y")};
  spec.kernel = window.kernel;
  spec.stride = window.stride;
  spec.padding = window.padding;
  spec.dilation = window.dilation;
  spec.groups = window.groups;
  require(window.groups > 0 && weight &&
              weight.shape() ==
                  Shape{spec.y[3], window.kernel[0], window.kernel[1], spec.x[3] / window.groups},
          "cudnn", "conv2d: the weight's shape does not fit {} and {}", x.shape().text(),
          y.shape().text());
  require(window.stride[0] > 0 && window.stride[1] > 0, "cudnn",
          "conv2d: a stride of {}×{}; needed: at least 1", window.stride[0], window.stride[1]);
  require(spec.x[0] == spec.y[0] && window.output(0, spec.x[1]) == spec.y[1] &&
              window.output(1, spec.x[2]) == spec.y[2],
          "cudnn", "conv2d: {} does not follow from {}", y.shape().text(), x.shape().text());
  if (x.elements() == 0 || y.elements() == 0) return why = "it is empty", std::nullopt;
  if (!graph_type(dtype, why)) return std::nullopt;
  return spec;
}

std::int64_t product(const std::array<std::int64_t, 4>& shape) {
  return shape[0] * shape[1] * shape[2] * shape[3];
}

std::string_view name_of(GraphTensor tensor) {
  constexpr std::string_view kNames[] = {"x", "weight", "y", "dy", "dx", "dweight"};
  return kNames[static_cast<std::size_t>(tensor) - 1];
}

/// How many numbers a graph has in a tensor.
std::int64_t numbers_in(const GraphSpec& spec, GraphTensor tensor) {
  switch (tensor) {
    case GraphTensor::kX:
    case GraphTensor::kDx: return product(spec.x);
    case GraphTensor::kY:
    case GraphTensor::kDy: return product(spec.y);
    default: return spec.y[3] * spec.kernel[0] * spec.kernel[1] * (spec.x[3] / spec.groups);
  }
}

}  // namespace

void check_per_channel(const Tensor& tensor, const Tensor& image, std::string_view name) {
  require(image && image.shape().rank() > 0, "cudnn", "{}: the image is missing", name);
  const std::int64_t channels = image.shape().back();
  const DType dtype = is_low_precision(image.dtype()) ? DType::kFloat32 : image.dtype();
  require(tensor && tensor.elements() == channels && tensor.dtype() == dtype, "cudnn",
          "{} must have {} {} elements", name, channels, name_of(dtype));
}

void check_bindings(const GraphSpec& spec, const Bindings& bindings) {
  for (const Binding& binding : bindings) {
    const std::int64_t elements = numbers_in(spec, binding.tensor);
    if (binding.elements < 0 || (binding.elements == elements && binding.dtype == spec.dtype))
      continue;
    fail(ExitCode::kInternal, "cudnn", "{}: {} has {} {} numbers; needed: {} {}", text(spec),
         name_of(binding.tensor), binding.elements, name_of(binding.dtype), elements,
         name_of(spec.dtype));
  }
}

std::string text(const GraphSpec& spec) {
  constexpr std::string_view kNames[] = {"forward", "backward data", "backward weights"};
  std::string line =
      fmt::format("conv2d {} {} {} -> {} kernel {}", kNames[static_cast<std::size_t>(spec.kind)],
                  name_of(spec.dtype), fmt::join(spec.x, "x"), fmt::join(spec.y, "x"),
                  fmt::join(spec.kernel, "x"));
  if (spec.stride != std::array<std::int64_t, 2>{1, 1})
    line += fmt::format(" stride {}", fmt::join(spec.stride, "x"));
  if (spec.padding != std::array<std::int64_t, 2>{0, 0})
    line += fmt::format(" padding {}", fmt::join(spec.padding, "x"));
  if (spec.dilation != std::array<std::int64_t, 2>{1, 1})
    line += fmt::format(" dilation {}", fmt::join(spec.dilation, "x"));
  if (spec.groups != 1) line += fmt::format(" groups {}", spec.groups);
  return line;
}

std::optional<GraphSpec> spec_of(const Conv2dForward& args, std::string& why) {
  require(static_cast<bool>(args.x), "cudnn", "conv2d: x is missing");
  return convolution(GraphKind::kForward, args.x, args.weight, args.y, args.window, args.x.dtype(),
                     why);
}

std::optional<GraphSpec> spec_of(const Conv2dBackwardData& args, std::string& why) {
  require(static_cast<bool>(args.dy), "cudnn", "conv2d: dy is missing");
  return convolution(GraphKind::kBackwardData, args.dx, args.weight, args.dy, args.window,
                     args.dy.dtype(), why);
}

std::optional<GraphSpec> spec_of(const Conv2dBackwardWeights& args, std::string& why) {
  require(static_cast<bool>(args.dy), "cudnn", "conv2d: dy is missing");
  return convolution(GraphKind::kBackwardWeights, args.x, args.dweight, args.dy, args.window,
                     args.dy.dtype(), why);
}

}  // namespace starling::cuda
