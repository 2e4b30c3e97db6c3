#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "core/operations/attention.h"
#include "core/operations/convolutions.h"

// What the backend requests from cuDNN, as plain values: the graph for a call, and which of its
// tensors is which of the graph's. Needs no cuDNN header, so that tests can check every choice.
namespace starling::cuda {

enum class GraphKind : std::uint8_t {
  kForward,
  kBackwardData,
  kBackwardWeights,
  kAttentionForward,
  kAttentionBackward
};

/// The tensors of the graphs; values are their ids in cuDNN.
enum class GraphTensor : std::int64_t {
  kX = 1,
  kWeight,
  kY,
  kDy,
  kDx,
  kDweight,  ///< in x's dtype, since no engine writes another for low precision
  kQ,
  kK,
  kV,
  kMask,
  kStats,  ///< fp32
  kDq,
  kDk,
  kDv,
};

/// Parameters of attention graphs, apart from dtype and sizes.
struct AttentionGraph {
  /// Strides in elements of samples, heads and positions: of q, k, v and y, then dy, dq, dk and dv.
  std::vector<std::array<std::int64_t, 3>> strides;
  std::array<std::int64_t, 4> mask{};  ///< sizes, 1 for broadcast dimensions; all 0: no mask
  std::array<std::int64_t, 4> mask_stride{};
  AttentionMask places;
  float scale = 1.0f;

  auto operator<=>(const AttentionGraph&) const = default;
};

/// One graph. Calls with equal specs share a plan.
struct GraphSpec {
  GraphKind kind = GraphKind::kForward;
  DType dtype = DType::kFloat32;    ///< of x, y, weight and their gradients
  std::array<std::int64_t, 4> x{};  ///< N, H, W, C; for attention q's N, H, T, D
  std::array<std::int64_t, 4> y{};  ///< N, P, Q, O; for attention k's N, Hkv, S, D
  std::array<std::int64_t, 2> kernel{}, stride{}, padding{}, dilation{};
  std::int64_t groups = 1;
  AttentionGraph attention = {};

  auto operator<=>(const GraphSpec&) const = default;
};

/// "conv2d backward data bf16 256x56x56x64 -> 256x56x56x64 kernel 3x3 padding 1x1"
std::string text(const GraphSpec& spec);

struct Binding {
  GraphTensor tensor;
  void* data;
};
using Bindings = std::vector<Binding>;

/// The graph for a call; nullopt, with the reason in `why`, if no graph computes exactly what the
/// call requests.
std::optional<GraphSpec> spec_of(const Conv2dForward& args, std::string& why);
std::optional<GraphSpec> spec_of(const Conv2dBackwardData& args, std::string& why);
std::optional<GraphSpec> spec_of(const Conv2dBackwardWeights& args, std::string& why);
std::optional<GraphSpec> spec_of(const AttentionForward& args, std::string& why);
std::optional<GraphSpec> spec_of(const AttentionBackward& args, std::string& why);

}  // namespace starling::cuda
