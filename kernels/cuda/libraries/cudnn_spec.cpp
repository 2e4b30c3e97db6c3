#include "kernels/cuda/libraries/cudnn_spec.h"

#include <fmt/format.h>

#include <initializer_list>

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

std::array<std::int64_t, 4> sizes(const Shape& shape) {
  return {shape[0], shape[1], shape[2], shape[3]};
}

/// The spec shared by the three convolutions; arguments are named as in the forward pass.
std::optional<GraphSpec> convolution(GraphKind kind, const Tensor& x, const Tensor& y,
                                     const Window2d& window, DType dtype, std::string& why) {
  GraphSpec spec{.kind = kind, .dtype = dtype, .x = sizes(x.shape()), .y = sizes(y.shape())};
  spec.kernel = window.kernel;
  spec.stride = window.stride;
  spec.padding = window.padding;
  spec.dilation = window.dilation;
  spec.groups = window.groups;
  if (x.elements() == 0 || y.elements() == 0) return why = "it is empty", std::nullopt;
  if (!graph_type(dtype, why)) return std::nullopt;
  return spec;
}

/// The spec shared by both passes of attention.
std::optional<GraphSpec> attention(GraphKind kind, const Attention& args,
                                   std::initializer_list<const View*> tensors, std::string& why) {
  const DType dtype = args.q.dtype();
  GraphSpec spec{
      .kind = kind, .dtype = dtype, .x = sizes(args.q.shape()), .y = sizes(args.k.shape())};
  if (args.q.elements() == 0 || args.k.elements() == 0) return why = "it is empty", std::nullopt;
  if (!is_low_precision(dtype))
    return why = fmt::format("{} is left to the own kernels", name_of(dtype)), std::nullopt;
  if (args.p > 0.0) return why = "cuDNN drops other weights", std::nullopt;
  if (args.window > 0 && (args.mask || spec.x[2] > spec.y[2]))
    return why = "its window comes with a mask, or more queries than keys", std::nullopt;
  if (args.positions) return why = "documents are left to the own kernels", std::nullopt;
  AttentionGraph& graph = spec.attention;
  graph.places = args;
  graph.scale = static_cast<float>(args.scale);
  // Engines load 16 bytes at a time.
  bool whole = spec.x[3] % 8 == 0;
  for (const View* x : tensors) {
    graph.strides.push_back({x->stride(0), x->stride(1), x->stride(2)});
    for (int d = 0; d < 3; ++d) whole = whole && x->stride(d) % 8 == 0;
  }
  if (args.mask) {
    for (int d = 0; d < 4; ++d) {
      const auto i = static_cast<std::size_t>(d);
      const bool repeats = args.mask.stride(d) == 0;
      graph.mask[i] = repeats ? 1 : args.mask.shape()[d];
      graph.mask_stride[i] = args.mask.stride(d);
    }
    // Engines do not broadcast a mask over queries or keys.
    if (graph.mask[2] != spec.x[2] || graph.mask[3] != spec.y[2] || graph.mask_stride[3] != 1)
      return why = "its mask repeats for queries or keys", std::nullopt;
  }
  if (!whole) return why = "its places do not begin at multiples of 16 bytes", std::nullopt;
  return spec;
}

/// text() for attention.
std::string attention_text(const GraphSpec& spec) {
  const AttentionGraph& graph = spec.attention;
  return fmt::format("attention {} {} {} by {}{}{}{}",
                     spec.kind == GraphKind::kAttentionForward ? "forward" : "backward",
                     name_of(spec.dtype), fmt::join(spec.x, "x"), fmt::join(spec.y, "x"),
                     graph.places.causal ? " causal" : "",
                     graph.places.window > 0 ? fmt::format(" window {}", graph.places.window) : "",
                     graph.mask[2] > 0 ? " masked" : "");
}

}  // namespace

std::string text(const GraphSpec& spec) {
  if (spec.kind >= GraphKind::kAttentionForward) return attention_text(spec);
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

std::optional<GraphSpec> spec_of(const AttentionForward& args, std::string& why) {
  return attention(GraphKind::kAttentionForward, args, {&args.q, &args.k, &args.v, &args.y}, why);
}

std::optional<GraphSpec> spec_of(const AttentionBackward& args, std::string& why) {
  return attention(GraphKind::kAttentionBackward, args,
                   {&args.q, &args.k, &args.v, &args.y, &args.dy, &args.dq, &args.dk, &args.dv},
                   why);
}

}  // namespace starling::cuda
