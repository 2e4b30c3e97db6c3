#pragma once

#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "core/host_device.h"
#include "core/operations/code.h"
#include "core/operations/map_function.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/storage.h"
#include "kernels/math/rectifier.h"

namespace starling::cpu {

using Index = std::int64_t;

/// The sizes of a convolution or pooling.
struct Geometry {
  Index images = 0, height = 0, width = 0, channels = 0;
  Index out_height = 0, out_width = 0, out_channels = 0;
  Index kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0,
        dilation_h = 1, dilation_w = 1, groups = 1;
};

/// The sizes of a matrix product: c[m,n] (+)= op(a)[m,k]·op(b)[k,n].
struct Product {
  Index m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  Index line_a = 0, line_b = 0, line_c = 0;  ///< leading dimensions

  /// The same product with contiguous matrices.
  Product dense() const {
    return {m, n, k, transpose_a, transpose_b, accumulate, width_a(), width_b(), n};
  }
  /// Length and number of lines in memory.
  Index width_a() const { return transpose_a ? m : k; }
  Index lines_a() const { return transpose_a ? k : m; }
  Index width_b() const { return transpose_b ? k : n; }
  Index lines_b() const { return transpose_b ? n : k; }
};

template <class T>
struct AttentionCall;

/// An output of a map: the slot of a step's result, and its destination.
template <class T>
struct MapResult {
  T* y;
  int slot;
};

/// The number of rows of `channels` values that normalisation kernels treat as one long row, so
/// that it fills whole vectors.
STARLING_HD Index fold_rows(Index channels) {
  if (channels >= 128) return 1;
  const Index power = channels & -channels;  // the largest power of two that divides it
  const Index unit = power >= 16 ? 1 : 16 / power;
  const Index rows = (127 + channels) / channels;
  return (rows + unit - 1) / unit * unit;
}
STARLING_HD Index fold_width(Index channels) { return fold_rows(channels) * channels; }
/// Rows of a block, whose sums are accumulated in T: at most 256 long rows, about 128 KiB of fp32.
STARLING_HD Index block_rows(Index channels) {
  const Index width = fold_width(channels);
  const Index lines = 32768 / width;
  return fold_rows(channels) * (lines < 16 ? 16 : lines > 256 ? 256 : lines);
}

/// Channels per block of the depthwise kernels, and their largest window.
constexpr Index kDepthwiseBlock = 64, kDepthwiseTaps = 64;
/// Whether each output channel reads one channel, its own, by a window of not too many pixels.
STARLING_HD bool is_depthwise(const Geometry& g) {
  return g.groups == g.channels && g.out_channels == g.channels && g.channels > 1 &&
         g.kernel_h * g.kernel_w <= kDepthwiseTaps;
}
/// Rows that a window spans, and columns that those of a line of outputs do.
STARLING_HD Index depthwise_rows(const Geometry& g) { return (g.kernel_h - 1) * g.dilation_h + 1; }
STARLING_HD Index depthwise_columns(const Geometry& g) {
  return (g.out_width - 1) * g.stride_w + (g.kernel_w - 1) * g.dilation_w + 1;
}

/// Minimal filtering of 3×3 convolutions, F(4×4, 3×3): the points at which tiles of 4×4 outputs are
/// multiplied, and the channels of a panel, a row of the matrix products' right factor.
constexpr Index kWinogradPoints = 36, kWinogradPanel = 16;
STARLING_HD Index winograd_across(const Geometry& g) { return (g.width + 3) / 4; }
STARLING_HD Index winograd_down(const Geometry& g) { return (g.height + 3) / 4; }

/// Some output channels of such a convolution. Backward, the gradient of the data: its outputs are
/// the convolution's inputs, and the other way round. At the points, the numbers of each lie in a
/// plane: inputs as [tiles, inputs] or, for the gradient of the filters, [inputs / 16, tiles, 16];
/// filters as [outputs / 16, inputs, 16], their gradient as [outputs, inputs]; outputs as [tiles,
/// outputs].
struct WinogradPart {
  Geometry geometry;
  bool backward = false;
  Index first = 0, outputs = 0;
  Index tiles = 0;  ///< of a block, at most

  Index inputs() const { return backward ? geometry.out_channels : geometry.channels; }
  // Numbers from one plane to the next. Powers of two would fall into the same lines of the cache.
  Index inputs_plane() const { return tiles * inputs() + 16; }
  Index filters_plane() const { return inputs() * outputs + 16; }
  Index outputs_plane() const { return tiles * outputs + 16; }
};

/// The kernels of winograd_isa.cpp; null without AVX2.
struct WinogradKernels {
  /// The filters' panels [first, last) at the points.
  void (*filters)(const WinogradPart& part, const float* weight, Index first, Index last,
                  float* u) = nullptr;
  /// y of tiles [first, last). bias: optional. scratch: planes of inputs and of outputs.
  void (*convolve)(const WinogradPart& part, const float* x, const float* u, const float* bias,
                   float* y, Index first, Index last, float* scratch) = nullptr;
  /// Inputs v and outputs' gradients z at the points, tiles [first, last) of a block that begins
  /// with tile `from`.
  void (*spread)(const WinogradPart& part, const float* x, const float* dy, Index from, Index first,
                 Index last, float* v, float* z) = nullptr;
  /// The filters' gradients (+)= those of a block of tiles, at points [first, last).
  void (*products)(const WinogradPart& part, const float* v, const float* z, Index tiles, bool add,
                   Index first, Index last, float* du) = nullptr;
  /// dweight (+)= the filters' gradients, of the part's outputs [first, last).
  void (*taps)(const WinogradPart& part, const float* du, bool accumulate, Index first, Index last,
               float* dweight) = nullptr;
};

/// Kernels for one element type and one instruction set, on raw pointers and ranges; callers divide
/// the work among threads. T is float, double, BFloat16 or Float16; R is its arithmetic type. Long
/// sums are accumulated in R over short runs, and in double beyond. 16-bit types have only the
/// normalisation, elementwise and loss kernels; for others, callers convert.
template <class T>
struct Kernels {
  using R = Compute<T>;

  // --- Normalisation (norm_isa.cpp). Rows have `channels` values; per-channel vectors marked
  // [width] are repeated to fold_width(channels) values, so that several short rows are processed
  // as one.

  /// Mean and sum of squared deviations of each channel over one block of rows. scratch: 3 · width
  /// values.
  void (*moments)(const T* x, Index rows, Index channels, R* scratch, double* mean, double* m2);
  /// y = x·scale + shift (+ residual), then the rectifier if `relu`. scale, shift: [width].
  void (*affine)(const T* x, const T* residual, T* y, Index rows, Index channels, const R* scale,
                 const R* shift, bool relu, const math::RectifierOf<R>& rectifier);
  /// g = (dy + dy2) masked by y; sum_g += Σg, sum_gx += Σ g·(x - mean). dy2, y, dz optional; given
  /// scale but not y, x·scale + shift is used for the mask. mean, scale, shift: [width]; scratch: 2
  /// · width.
  void (*masked_sums)(const T* x, const T* y, const T* dy, const T* dy2, T* dz, Index rows,
                      Index channels, const R* mean, const R* scale, const R* shift,
                      const math::RectifierOf<R>& rectifier, R* scratch, double* sum_g,
                      double* sum_gx);
  /// dx = g·a + (x - mean)·b + c with g as above. All per-channel vectors: [width].
  void (*masked_affine)(const T* x, const T* y, const T* dy, const T* dy2, T* dx, Index rows,
                        Index channels, const R* mean, const R* scale, const R* shift,
                        const math::RectifierOf<R>& rectifier, const R* a, const R* b, const R* c);
  /// gamma, beta, mean and inv_std: optional. Not centered: the mean is taken as 0.
  void (*layer_norm_forward)(const T* x, const R* gamma, const R* beta, T* y, R* mean, R* inv_std,
                             Index rows, Index channels, bool centered, double eps);
  /// Adds the block's contributions to dbeta and dgamma to sums[2 · channels] (optional); dx
  /// and `term`, which is added to it, optional. mean is null if not centered. scratch: 2 ·
  /// channels.
  void (*layer_norm_backward)(const T* x, const T* dy, const R* gamma, const R* mean,
                              const R* inv_std, const T* term, T* dx, Index rows, Index channels,
                              R* scratch, double* sums);

  // --- Reductions (reduce_isa.cpp) of a matrix with leading dimension `line`.
  /// to[i] = reduction of the n elements of line i.
  void (*fold_lines)(Reduction by, const T* x, Index line, Index lines, Index n, double* to);
  /// Accumulates column c in to[c]. `joins`: several contiguous lines may be treated as a longer
  /// one.
  void (*fold_columns)(Reduction by, const T* x, Index line, Index lines, Index columns, bool joins,
                       double* to);

  // --- Elementwise (elementwise_isa.cpp), on n elements.
  /// The `count` steps of a Map (core/operations/map.h). Slot k < kMapTensors has n elements: in[k]
  /// or, in R, wide[k]. If both are null, and for constants' slots, its value is constants[k].
  void (*map)(const MapStep* steps, int count, const T* const* in, const R* const* wide,
              const R* constants, const MapResult<T>* results, int outputs, Index n);
  /// Elements first … first + n - 1 of a dropout of x to y (addresses of element 0); `first` is a
  /// multiple of 4.
  void (*dropout)(const T* x, T* y, Index first, Index n, double p, std::uint64_t key,
                  std::uint64_t counter);
  /// out (+)= Σ weight_k in_k.
  void (*weighted_sum)(const T* const* in, const R* weight, int terms, T* out, Index n,
                       bool accumulate);
  /// Σ x², in fp64.
  double (*squares)(const T* x, Index n);
  /// Conversions between the 16-bit types and fp32, to nearest even; null for the others.
  void (*widen)(const T* x, R* y, Index n) = nullptr;
  void (*narrow)(const R* x, T* y, Index n) = nullptr;

  // --- Copies (copy_isa.cpp) of elements of T's size. `large`: use streaming stores if possible.
  /// y[c · line_y + r] = x[r · line_x + c].
  void (*transpose)(const T* x, Index line_x, T* y, Index line_y, Index rows, Index columns,
                    bool large);
  /// Lines of n elements.
  void (*copy_lines)(const T* x, Index line_x, T* y, Index line_y, Index lines, Index n,
                     bool large);

  // --- Codes (codec_isa.cpp), fp32 and fp64 only. `head`: see kernels/math/codec.h.
  /// The range of n elements in fp32. With `min_max`, lowers *least to their minimum and raises
  /// *most to their maximum; otherwise sets them to ∓max|x|. Both become NaN if any element is.
  void (*range)(bool min_max, const T* x, Index n, float* least, float* most) = nullptr;
  /// out = x - minus + residual; one of the last two may be null.
  void (*difference)(const T* x, const T* minus, const T* residual, Index n, T* out) = nullptr;
  /// Encodes n elements, an even number, and sets rest = decay · (x - decoded); `head` and `rest`
  /// are optional.
  void (*encode)(Code code, float least, float most, const T* x, Index n, std::uint8_t* codes,
                 float* head, T* rest, T decay) = nullptr;
  /// sum = (`accumulate` ? sum : 0) + Σ weight_k · decoded_k, for one or two messages, within a
  /// block.
  void (*decode)(Code code, int terms, const float* const* heads, const std::uint8_t* const* codes,
                 Index n, const T* weights, bool accumulate, T* sum) = nullptr;
  /// The `chosen` places of largest |v| in fp32, the first of equal ones, ascending, and what is
  /// there; NaN is largest. v = x - minus + residual, and residual' = decay · v; either may be
  /// null. `v`, `places` and `values`: scratch of n + 16. `guess`: of the least |v| that is chosen,
  /// as bits, or 0; becomes it. Returns the largest |v|.
  float (*choose)(const T* x, const T* minus, T* residual, T decay, Index n, Index chosen,
                  std::int32_t& guess, T* v, std::uint16_t* places, T* values) = nullptr;
  /// Of 12 bits, or of 16 if `wide`.
  void (*put_places)(const std::uint16_t* places, Index n, bool wide, std::uint8_t* to) = nullptr;
  /// Codes of `bits` of a sparse message's values, of which |most| is the largest, and rest = decay
  /// · (value - decoded). Returns the scale.
  float (*encode_values)(int bits, float most, const T* values, Index n, std::uint8_t* codes,
                         T* rest, T decay) = nullptr;
  /// sums[2·place] += weight · value and sums[2·place + 1] += weight, of n numbers; a place beyond
  /// the last is skipped.
  void (*add_values)(int bits, float scale, const std::uint8_t* codes, const std::uint8_t* places,
                     bool wide, Index n, Index last, T weight, T* sums) = nullptr;
  /// out = such sums over their weights, where these are above 0, or over `all` if that is not 0.
  /// Sums become 0.
  void (*take_means)(T* sums, T all, Index n, T* out) = nullptr;
  void (*encode16)(const T* x, Index n, BFloat16* codes) = nullptr;
  /// sum = (`accumulate` ? sum : 0) + weight · decoded.
  void (*decode16)(const BFloat16* codes, Index n, T weight, bool accumulate, T* sum) = nullptr;

  // --- Attention (attention_isa.cpp, attention.h).
  /// Query blocks [first, last), numbered over samples, heads and blocks. scratch:
  /// forward_scratch().
  void (*attention_forward)(const AttentionCall<T>& call, Index first, Index last, R* scratch);
  /// Key heads [first, last), numbered over samples and heads. scratch: backward_scratch().
  void (*attention_backward)(const AttentionCall<T>& call, Index first, Index last, R* scratch);

  // --- Pooling (pool_isa.cpp): images [first, last) of N×H×W×C.
  void (*max_pool_forward)(const T* x, T* y, std::int32_t* index, const Geometry& g, Index first,
                           Index last);
  void (*max_pool_backward)(const T* dy, const std::int32_t* index, T* dx, const Geometry& g,
                            Index first, Index last);
  void (*avg_pool_forward)(const T* x, T* y, const Geometry& g, Index first, Index last);
  void (*avg_pool_backward)(const T* dy, T* dx, const Geometry& g, Index first, Index last);

  // --- Softmax (softmax_isa.cpp) or its logarithm, of rows of n elements. dx may be dy.
  void (*softmax)(const T* x, T* y, Index rows, Index n, bool logarithm);
  void (*softmax_backward)(const T* y, const T* dy, T* dx, Index rows, Index n, bool logarithm);
  // Loss on rows of logits
  /// loss[row] of each row; dlogits (optional, may be logits) = gradient · scale. Labels must be in
  /// range.
  void (*softmax_cross_entropy)(const T* logits, const std::int32_t* labels, double* loss,
                                T* dlogits, Index rows, Index classes, double smoothing,
                                double scale);

  /// Minimal filtering, fp32 only.
  WinogradKernels winograd;

  // --- Depthwise convolutions (depthwise_isa.cpp), fp32 and fp64: the gradient of the filters.
  /// sums[kH·kW, kDepthwiseBlock] over images [first, last); overwritten. Of the block of
  /// kDepthwiseBlock channels that starts at `channel`. scratch: (depthwise_rows() ·
  /// depthwise_columns() + out_width) · kDepthwiseBlock.
  void (*depthwise_backward_weights)(const Geometry& g, const T* x, const T* dy, T* sums,
                                     Index first, Index last, Index channel, T* scratch) = nullptr;

  // --- Convolution and matrix product by plain loops (plain_isa.cpp), for fp64.
  /// Output rows first … last, numbered over N·P.
  void (*conv_forward)(const Geometry& g, const T* x, const T* weight, const T* bias, T* y,
                       Index first, Index last);
  /// Input rows first … last, counted over N·H.
  void (*conv_backward_data)(const Geometry& g, const T* dy, const T* weight, T* dx, Index first,
                             Index last);
  /// Output channels first … last.
  void (*conv_backward_weights)(const Geometry& g, const T* x, const T* dy, T* dweight, Index first,
                                Index last, bool accumulate);
  /// Rows first … last of c[M,N] (+)= op(a)·op(b) + bias.
  void (*matmul)(const Product& p, const T* a, const T* b, const T* bias, T* c, Index first,
                 Index last);
};

/// The tables of all types, for one instruction set.
struct AllKernels {
  Kernels<float> fp32;
  Kernels<double> fp64;
  Kernels<BFloat16> bf16;
  Kernels<Float16> fp16;

  template <class T>
  const Kernels<T>& of() const {
    if constexpr (std::is_same_v<T, float>)
      return fp32;
    else if constexpr (std::is_same_v<T, double>)
      return fp64;
    else if constexpr (std::is_same_v<T, BFloat16>)
      return bf16;
    else
      return fp16;
  }
};

}  // namespace starling::cpu

/// The files of kernels: add_<name>() of <name>_isa.cpp sets its members of the tables.
#define STARLING_KERNEL_FILES(X) \
  X(norm)                        \
  X(reduce)                      \
  X(copy) X(elementwise) X(softmax) X(attention) X(pool) X(codec) X(depthwise) X(winograd) X(plain)
#define STARLING_DECLARE_ADDER(name) void add_##name(AllKernels& all);
STARLING_DECLARE_PER_ISA(STARLING_KERNEL_FILES(STARLING_DECLARE_ADDER))
#undef STARLING_DECLARE_ADDER

/// Goes before a loop whose iterations do not depend on each other through memory: it vectorises
/// without a check.
#define STARLING_LOOP _Pragma("GCC ivdep")
