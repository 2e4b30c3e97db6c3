#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"

// What the backend asks of cuDNN, as plain values: which graph for which call, and which tensor of the call is which of the graph's. No
// cuDNN header is needed here, so tests look at every choice without it.
namespace starling::cuda {

enum class GraphKind : std::uint8_t {
  kConvolution,
  kConvolutionBias,            ///< the bias is added before the result is rounded
  kConvolutionStatistics,      ///< and the sums of y and y² per channel
  kNormConvolutionStatistics,  ///< the same of relu(scale·x + shift)
  kConvolutionBackwardData,
  kConvolutionBackwardDataNorm,  ///< masked by what was normalised, and the sums that the batch norm's gradient needs
  kConvolutionBackwardWeights,
  kNormConvolutionBackwardWeights,  ///< of relu(scale·x + shift)
  kBatchNorm,
  kBatchNormBackward,
};

constexpr bool is_convolution(GraphKind kind) { return kind < GraphKind::kBatchNorm; }
/// Convolutions that carry out parts of a batch norm.
constexpr bool is_fused(GraphKind kind) {
  return kind == GraphKind::kConvolutionStatistics || kind == GraphKind::kNormConvolutionStatistics ||
         kind == GraphKind::kConvolutionBackwardDataNorm || kind == GraphKind::kNormConvolutionBackwardWeights;
}
/// Of these, those that read relu(scale·x + shift) in x's place.
constexpr bool norms_on_load(GraphKind kind) {
  return kind == GraphKind::kNormConvolutionStatistics || kind == GraphKind::kNormConvolutionBackwardWeights;
}

/// The tensors of the graphs; the values are the graphs' tensor ids.
enum class GraphTensor : std::int64_t {
  kX = 1,
  kWeight,
  kBias,
  kY,
  kDy,
  kDy2,
  kDx,
  kDweight,  ///< of x's dtype: no engine has another for low precision
  kResidual,
  kGamma,
  kBeta,
  kMean,
  kInvStd,
  kDgamma,  ///< Σ dy·x̂
  kDbeta,   ///< Σ dy
  kScale,   ///< of x's dtype, as is kShift: engines take no other
  kShift,
  kSum,
  kSquareSum,
  kDyFactor,  ///< what dx = kDyFactor·dy + kXFactor·x + kOffset would need: the engines write them, nobody reads them
  kXFactor,
  kOffset,
};

/// One graph. Two calls with equal specs share a plan.
struct GraphSpec {
  GraphKind kind = GraphKind::kConvolution;
  DType dtype = DType::kFloat32;    ///< of x, y, weight and their gradients; per-channel tensors of batch norms are fp32
  std::array<std::int64_t, 4> x{};  ///< N, H, W, C
  std::array<std::int64_t, 4> y{};  ///< N, P, Q, O
  std::array<std::int64_t, 2> kernel{}, stride{}, padding{}, dilation{};
  std::int64_t groups = 1;
  float eps = 0.0f;
  bool relu = false;         ///< of kBatchNorm and kBatchNormBackward, which finds its mask from x
  bool residual = false;     ///< of kBatchNorm
  bool second_term = false;  ///< of kBatchNormBackward

  auto operator<=>(const GraphSpec&) const = default;
};

/// Whether cuDNN compiles its engines at run time (with NVRTC, 0.6 s and more each); those of the others are in the library.
constexpr bool compiled_at_run_time(const GraphSpec& spec) {
  return !is_convolution(spec.kind) || (spec.kind == GraphKind::kConvolutionBias && spec.dtype != DType::kFloat32);
}

/// "conv2d backward data bf16 x 256x56x56x64, weight 64x3x3x64, stride 1x1 …"
std::string text(const GraphSpec& spec);

struct Binding {
  GraphTensor tensor;
  void* data;
  std::int64_t elements = -1;  ///< -1: scratch memory of the backend's, which fits
  DType dtype = DType::kFloat32;
};
using Bindings = std::vector<Binding>;

/// The graph for a call, or nothing and the reason in `why` where no graph does exactly what the call asks.
std::optional<GraphSpec> spec_of(const Conv2dForward& args, std::string& why);
std::optional<GraphSpec> spec_of(const Conv2dBackwardData& args, std::string& why);
std::optional<GraphSpec> spec_of(const Conv2dBackwardWeights& args, std::string& why);
std::optional<GraphSpec> spec_of(const BatchNormForward& args, std::string& why);
std::optional<GraphSpec> spec_of(const BatchNormBackward& args, std::string& why);

/// Refuses a tensor of the call that is not what the graph reads or writes there, which no library would notice.
void check_bindings(const GraphSpec& spec, const Bindings& bindings);
/// Numbers of the parameters' dtype, one for each of the image's channels.
void check_per_channel(const Tensor& tensor, const Tensor& image, std::string_view name);

/// A usual convolution with parts of a batch norm, in each of the forms that there are: a device with engines for all of them fuses.
std::vector<GraphSpec> fusion_probes();

}  // namespace starling::cuda
