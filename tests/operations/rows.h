#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/operations/codecs.h"
#include "core/operations/convolutions.h"
#include "core/operations/losses.h"
#include "core/operations/map.h"
#include "core/operations/norms.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"
#include "core/operations/resampling.h"
#include "tests/operations/operation_table.h"

// Functions that the operation table's rows are made with: one function per kind of row, over
// shapes.
namespace starling::tests {

using Tensors = std::vector<Tensor>;
using Index = std::int64_t;

inline std::size_t at(Index i) { return static_cast<std::size_t>(i); }
inline double count(const Shape& shape) { return static_cast<double>(shape.elements()); }

struct Image {
  Index n, h, w, c;
  Shape shape() const { return {n, h, w, c}; }
  std::size_t offset(Index i, Index y, Index x, Index channel) const {
    return at(((i * h + y) * w + x) * c + channel);
  }
};

inline Window2d window(Index k, Index stride, Index padding, Index dilation = 1, Index groups = 1) {
  return {{k, k}, {stride, stride}, {padding, padding}, {dilation, dilation}, groups};
}
inline std::string text(const Window2d& s) {
  return fmt::format("window {}x{} stride {}x{} padding {}x{} dilation {}x{} groups {}",
                     s.kernel[0], s.kernel[1], s.stride[0], s.stride[1], s.padding[0], s.padding[1],
                     s.dilation[0], s.dilation[1], s.groups);
}

/// Calls f(output y, output x, kernel y, kernel x, input y, input x) for all that lie inside.
template <class F>
void for_taps(const Image& x, const Window2d& s, F f) {
  for (Index p = 0; p < s.output(0, x.h); ++p) {
    for (Index q = 0; q < s.output(1, x.w); ++q) {
      for (Index i = 0; i < s.kernel[0]; ++i) {
        for (Index j = 0; j < s.kernel[1]; ++j) {
          const Index y = p * s.stride[0] - s.padding[0] + i * s.dilation[0],
                      z = q * s.stride[1] - s.padding[1] + j * s.dilation[1];
          if (y >= 0 && y < x.h && z >= 0 && z < x.w) f(p, q, i, j, y, z);
        }
      }
    }
  }
}

/// The element of a tensor of shape `own` that stands at place i of `places`, to which it
/// broadcasts (elementwise.cpp).
std::size_t place_in(const Shape& own, const Shape& places, std::size_t i);

// products.cpp
Operation convolution(const Image& x, Index filters, const Window2d& s, bool bias);
/// A product; with kParameter as a gradient of weights.
Operation matrix_product(Index m, Index n, Index k, bool ta, bool tb, bool bias,
                         Role result = Role::kActivation, bool relu = false);

/// The gradient of a weight from that of outputs[k, m] and inputs[k, n], and the one of the bias.
Operation weight_gradient(Index m, Index n, Index k);
/// A product, with a bias in the format of the weights, then GELU in its tanh form; and a product
/// that goes through the gradient of that.
Operation gelu_product(Index m, Index n, Index k, bool bias);
Operation gelu_gradient_product(Index m, Index n, Index k);
/// Of batches, which broadcast to c's.
Operation batched_product(const Shape& a, const Shape& b, const Shape& c, bool ta, bool tb,
                          bool bias = false, bool relu = false);
/// Queries by keys, N×H×T×T, of N×T×(3·H·D); and N×H×T×T by values, written as N×T×H×D.
Operation head_scores(Index batch, Index length, Index count, Index depth);
Operation head_values(Index batch, Index length, Index count, Index depth);

// attention.cpp
struct AttentionRow {
  Index samples = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, depth = 1;
  bool causal = false;
  /// Added to the scores: none, numbers of each key of a sample, or of each score, of which one
  /// query's are all -infinity
  enum class Mask : std::uint8_t { kNone, kKeys, kScores } mask = Mask::kNone;
  double p = 0.0;
  Index window = 0;  ///< with `causal`
  /// Lengths of a sequence's documents, with `causal`; in each further sample one place further
  std::vector<Index> documents = {};
};
Operation attention(const AttentionRow& row);
/// Queries, keys and values in one tensor, results of all heads side by side.
Operation packed_attention(const AttentionRow& row);
/// Rows that lie behind each other repeat a position.
/// `first`: positions count from there on; else they are given. `scaled`: frequencies are Llama
/// 3.1's.
Operation rotary(Index rows, Index width, Index positions, Index repeat, bool interleaved,
                 std::optional<Index> first = {}, bool scaled = false);

// norms.cpp
enum class MaskFrom { kOutput, kInput };
struct NormCase {
  bool relu = false, residual = false, affine = true;
  MaskFrom mask = MaskFrom::kOutput;
  double ceiling = kNoCeiling;
  bool inference = false;  ///< with the running statistics
  bool two_terms = false;  ///< the gradient comes as dy and dy2
};
Operation batch_norm(Index rows, Index channels, const NormCase& how);
/// `centered` false: the RMS norm, without beta.
Operation layer_norm(Index rows, Index channels, bool affine = true, bool centered = true,
                     bool residual = false);
/// Of a sum, which is an output.
Operation layer_norm_of_sum(Index rows, Index channels, bool centered = true);
Operation softmax(Index rows, Index n, bool logarithm = false);

// The steps of a batch norm, each alone
Operation batch_norm_statistics(Index rows, Index channels);
Operation batch_norm_finish(Index channels, Index count_of_values, bool running);
Operation batch_norm_backward_sums(Index rows, Index channels,
                                   const Rectifier& rectifier = {.relu = true});
Operation batch_norm_backward_apply(Index rows, Index channels, bool accumulate,
                                    bool affine = true);

// images.cpp
/// Whole numbers of which many are alike; without a gradient, which has no slope there.
enum class Ties { kNone, kMany };
Operation pooling(Pooling kind, const Image& x, const Window2d& s, Ties ties = Ties::kNone);
Operation global_pooling(const Image& x);
Operation subsample_pad(const Image& x, Index stride, Index channels, Index before);
Operation turned_around(Index rows, Index columns);
Operation repeated(Index rows, Index times);
/// Columns among others, which become a number, or stay.
Operation put_beside(Index rows, Index columns, Index begin, Index count,
                     std::optional<double> others);
Operation flatten(const Image& x);
Operation augmentation(const Image& x, Index crop_padding, Index boxes = 0, bool mix = false);
Operation changed_pixels(const Image& x, Index steps);
Operation resized_pictures(const Image& y);

// elementwise.cpp
Operation activation(MapFunction function, const std::string& name, Index n);
/// Any function of a map, of n numbers; and three results of one pass.
Operation map_function(MapFunction function, Index n);
Operation map_of_several(const Shape& a, const Shape& b, const Shape& y);
/// Four steps over three tensors and a number. b is a parameter.
Operation broadcast_map(const Shape& a, const Shape& b, const Shape& c, const Shape& y);
Operation sum_of_two(Index n);
Operation sum_with_weights(Index n, int terms = 3);
/// Of the products of a and b, which broadcast to `places`; sums are halved. b is a parameter.
Operation reduction(Reduction by, const Shape& a, const Shape& b, const Shape& places,
                    const Shape& y);
Operation sums_of_rows(Index rows, Index channels);
Operation dropout(Index n, double p);
/// A cast between activations and parameters: a change of type where these are of two.
Operation cast(Index n, Role from, Role to);

// codecs.cpp
/// Two arrays, encoded, decoded and added up.
Operation coded_sum(Index n, Code code, Index block, bool accumulate = false);
/// The mean of two sparse messages of differences with residuals, over two parts with some elements
/// between and behind them.
Operation sparse_mean(Index n, Index block, double share, int bits, bool of_all = false,
                      int copies = 1);
/// The code of x, or of a difference, with a residual, which keeps three quarters of what is lost.
Operation coded_rest(Index n, Code code, Index block, bool difference = true);

// along.cpp
/// Rows of a table by number, as an embedding's; or, with `each`, numbers along a dimension.
Operation indexed(Index outer, Index n, Index rows, Index columns, bool each = false);

/// The largest of each line of outer×n×inner; those with ties have no gradient.
Operation top_k(Index outer, Index n, Index inner, Index k, Ties ties = Ties::kNone);
Operation cumulative_sum(Index outer, Index n, Index inner, bool reverse = false);
Operation resampled(Resampling kind, const Image& x, Index height, Index width,
                    std::array<double, 2> scale = {1.0, 1.0});

// losses.cpp
Operation cross_entropy(Index rows, Index classes, double smoothing,
                        std::optional<std::int32_t> ignored = {}, Index padding = 0);
/// Class numbers as targets; `weighted`: classes have weights, the first none; with an `ignored`
/// one the rows' weights are added up in a second output.
Operation target_loss(LossKind kind, Index rows, Index classes, double parameter = 0.0,
                      double smoothing = 0.0, bool weighted = false,
                      std::optional<std::int32_t> ignored = {});
/// Of rows that come in two parts, with one mean over those that count.
Operation cross_entropy_in_parts(Index rows, Index classes, std::int32_t ignored);
/// Numbers as targets: the loss and its gradient, both against plain loops.
Operation soft_target_loss(LossKind kind, Index rows, Index classes, double parameter = 0.0,
                           double smoothing = 0.0, bool weighted = false);
Operation squared_distance(Index n, bool of_two);
/// Two tensors at once, one of them `n` long.
Operation squared_norms(Index n);
/// Kinds of numbers that the squared norms hold in this row's run.
enum class Norms { kFinite, kInfinite, kNan };
Operation gradient_control(Index totals, double clip, bool check_finite, Norms norms);

// updates.cpp
struct UpdateRow {
  std::string rule;  ///< sgd, adamw or accum_adamw
  Index n = 96;      ///< elements, a multiple of 32
  int terms = 1;     ///< neighbours
  Index step = 2;
  bool skip = false;  ///< GradientControl says so
  /// Several to time a whole group, of which the first and the last do other work. Not compared
  /// with the plain loop.
  Index updates = 1;
  /// false: states are taken as the outputs hold them, so that a timing has no copies in it
  bool own_states = true;
};
Operation fused_update(const UpdateRow& how);

}  // namespace starling::tests
