#include "kernels/cuda/libraries/cudnn_spec.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/operations/convolutions.h"

namespace starling::cuda {

namespace {

bool graph_type(DType dtype, std::string& why) {
  if (dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16)
    return true;
  why = fmt::format("{} is left to the own kernels", name_of(dtype));
  return false;
}

std::array<std::int64_t, 4> image(const Tensor& x) {
  const Shape& shape = x.shape();
  return {shape[0], shape[1], shape[2], shape[3]};
}

/// The spec that the three convolutions share; tensors by the names that the forward pass gives
/// them.
std::optional<GraphSpec> convolution(GraphKind kind, const Tensor& x, const Tensor& y,
                                     const Window2d& window, DType dtype, std::string& why) {
  GraphSpec spec{.kind = kind, .dtype = dtype, .x = image(x), .y = image(y)};
  spec.kernel = window.kernel;
  spec.stride = window.stride;
  spec.padding = window.padding;
  spec.dilation = window.dilation;
  spec.groups = window.groups;
  if (x.elements() == 0 || y.elements() == 0) return why = "it is empty", std::nullopt;
  if (!graph_type(dtype, why)) return std::nullopt;
  return spec;
}

}  // namespace

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
  return convolution(GraphKind::kForward, args.x, args.y, args.window, args.x.dtype(), why);
}

std::optional<GraphSpec> spec_of(const Conv2dBackwardData& args, std::string& why) {
  return convolution(GraphKind::kBackwardData, args.dx, args.dy, args.window, args.dy.dtype(), why);
}

std::optional<GraphSpec> spec_of(const Conv2dBackwardWeights& args, std::string& why) {
  return convolution(GraphKind::kBackwardWeights, args.x, args.dy, args.window, args.dy.dtype(),
                     why);
}

}  // namespace starling::cuda
