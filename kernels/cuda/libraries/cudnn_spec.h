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

// What the backend asks of cuDNN, as plain values: which graph for which call, and which tensor of
// the call is which of the graph's. No cuDNN header is needed here, so tests look at every choice
// without it.
namespace starling::cuda {

enum class GraphKind : std::uint8_t {
  kForward,
  kBackwardData,
  kBackwardWeights,
  kAttentionForward,
  kAttentionBackward
};

/// The tensors of the graphs; the values are the graphs' tensor ids.
enum class GraphTensor : std::int64_t {
  kX = 1,
  kWeight,
  kY,
  kDy,
  kDx,
  kDweight,  ///< of x's dtype: no engine has another for low precision
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
  /// Elements from a sample, head and place to the next: of q, k, v and y, then dy, dq, dk and dv.
  std::vector<std::array<std::int64_t, 3>> strides;
  std::array<std::int64_t, 4> mask{};  ///< its sizes, 1 where it repeats; 0: no mask
  std::array<std::int64_t, 4> mask_stride{};
  bool causal = false;
  float scale = 1.0f;

  auto operator<=>(const AttentionGraph&) const = default;
};

/// One graph. Two calls with equal specs share a plan.
struct GraphSpec {
  GraphKind kind = GraphKind::kForward;
  DType dtype = DType::kFloat32;    ///< of x, y, weight and their gradients
  std::array<std::int64_t, 4> x{};  ///< N, H, W, C; of attention q's N, H, T, D
  std::array<std::int64_t, 4> y{};  ///< N, P, Q, O; of attention k's N, Hkv, S, D
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

/// The graph for a call, or nothing and the reason in `why` where no graph does exactly what the
/// call asks.
std::optional<GraphSpec> spec_of(const Conv2dForward& args, std::string& why);
std::optional<GraphSpec> spec_of(const Conv2dBackwardData& args, std::string& why);
std::optional<GraphSpec> spec_of(const Conv2dBackwardWeights& args, std::string& why);
std::optional<GraphSpec> spec_of(const AttentionForward& args, std::string& why);
std::optional<GraphSpec> spec_of(const AttentionBackward& args, std::string& why);

}  // namespace starling::cuda
