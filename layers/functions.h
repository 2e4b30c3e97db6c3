#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/autograd.h"
#include "core/backend.h"
#include "core/operations/attention.h"
#include "core/operations/convolutions.h"
#include "core/operations/losses.h"
#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "core/operations/resampling.h"
#include "core/view.h"

// Differentiable functions, from which layers are built. Each runs its operation on the pass's
// backend and, if a gradient is needed, records its backward function. For shapes see
// core/operations; optional parameters may be null.
namespace starling::functions {

/// An operand of a pointwise function: a tensor or a scalar constant.
class Operand {
 public:
  Operand(const Variable& x) : variable_(&x) {}           // NOLINT(google-explicit-constructor)
  Operand(double number) : number_(number) {}             // NOLINT(google-explicit-constructor)
  const Variable* variable() const { return variable_; }  ///< null: a number
  double number() const { return number_; }

 private:
  const Variable* variable_ = nullptr;
  double number_ = 0.0;
};

// Pointwise functions, equal to PyTorch's of the same name. Operands are broadcast as in NumPy, and
// have the same floating dtype; at least one of two is a value. A chain of pointwise functions is
// computed in one pass over memory, and so is its gradient. It is evaluated when something else
// reads its value, in fp32 for bf16 and fp16 with one rounding at the end. The gradient of a
// broadcast operand is summed over its repetitions, in an order that depends on the sizes only.
// Error(kUsage) if shapes do not broadcast or dtypes differ.
Variable add(const Operand& a, const Operand& b, Pass& pass);
Variable subtract(const Operand& a, const Operand& b, Pass& pass);
Variable multiply(const Operand& a, const Operand& b, Pass& pass);
Variable divide(const Operand& a, const Operand& b, Pass& pass);
Variable power(const Operand& a, const Operand& b, Pass& pass);
Variable maximum(const Operand& a, const Operand& b, Pass& pass);
Variable minimum(const Operand& a, const Operand& b, Pass& pass);
Variable negative(const Variable& x, Pass& pass);
Variable abs(const Variable& x, Pass& pass);
Variable sign(const Variable& x, Pass& pass);
Variable square(const Variable& x, Pass& pass);
Variable reciprocal(const Variable& x, Pass& pass);
Variable exp(const Variable& x, Pass& pass);
Variable log(const Variable& x, Pass& pass);
Variable log1p(const Variable& x, Pass& pass);
Variable sqrt(const Variable& x, Pass& pass);
Variable rsqrt(const Variable& x, Pass& pass);
Variable sin(const Variable& x, Pass& pass);
Variable cos(const Variable& x, Pass& pass);
Variable tanh(const Variable& x, Pass& pass);
Variable sigmoid(const Variable& x, Pass& pass);
Variable softplus(const Variable& x, Pass& pass);
Variable erf(const Variable& x, Pass& pass);
Variable relu(const Variable& x, Pass& pass);
Variable silu(const Variable& x, Pass& pass);
// Comparisons return 1 or 0 in the operands' dtype, and have no gradient. The gradient of a maximum
// or minimum is divided equally between equal operands.
Variable equal(const Operand& a, const Operand& b, Pass& pass);
Variable not_equal(const Operand& a, const Operand& b, Pass& pass);
Variable less(const Operand& a, const Operand& b, Pass& pass);
Variable less_equal(const Operand& a, const Operand& b, Pass& pass);
Variable greater(const Operand& a, const Operand& b, Pass& pass);
Variable greater_equal(const Operand& a, const Operand& b, Pass& pass);
enum class GeluForm : std::uint8_t { kNone, kTanh };  ///< exact, or the tanh approximation
Variable gelu(const Variable& x, Pass& pass, GeluForm form = GeluForm::kNone);
/// min(max(x, low), high). The gradient is passed on where x is within the limits.
Variable clamp(const Variable& x, double low, double high, Pass& pass);
/// a where the condition is nonzero, else b. The condition has the operands' dtype and no gradient.
Variable where(const Variable& condition, const Operand& a, const Operand& b, Pass& pass);
/// Dimensions; negative ones count from the end: -1 is the last.
using Dims = std::vector<int>;
/// Normalises `dim` to be nonnegative. Error(kUsage), starting with `name`, if out of range.
int dimension(std::string_view name, const Shape& shape, int dim);

// Reductions over dimensions (default: all), which are removed, or with `keepdim` have size 1. The
// gradient of max and min is divided equally between equal elements. Sums are computed in fp32 at
// least, in an order that depends on the sizes only. Errors as for pointwise functions.
Variable sum(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
Variable mean(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
Variable max(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
Variable min(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
/// Σ (x - mean)² / (n - correction).
Variable variance(const Variable& x, const Dims& dims, double correction, bool keepdim, Pass& pass);
Variable logsumexp(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
/// √Σ x².
Variable norm(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
/// The index of the largest element along a dimension, the first of equal ones; NaN is larger than
/// any number. int32, without a gradient.
Tensor argmax(const Variable& x, int dim, bool keepdim, Pass& pass);
/// The k largest elements along a dimension in descending order, and their indices (int32), ordered
/// as by argmax(). Gradients go to the elements that were chosen.
struct TopValues {
  Variable values;
  Tensor index;
};
TopValues topk(const Variable& x, std::int64_t k, int dim, Pass& pass);
/// Cumulative sum, computed in fp64.
Variable cumsum(const Variable& x, int dim, Pass& pass);
Variable softmax(const Variable& x, int dim, Pass& pass);
Variable log_softmax(const Variable& x, int dim, Pass& pass);

/// The shape that two shapes broadcast to, as in NumPy. Error(kUsage), starting with `name`, if
/// they do not.
Shape broadcast(std::string_view name, const Shape& a, const Shape& b);

// Functions that move elements, of any dtype; they copy unless said otherwise.
/// Dimension d of the result is dimension dims[d] of x.
Variable permute(const Variable& x, const Dims& dims, Pass& pass);
Variable transpose(const Variable& x, int dim_a, int dim_b, Pass& pass);
/// With a dimension of size 1 inserted at `dim`, or removed; no copy.
Variable unsqueeze(const Variable& x, int dim, Pass& pass);
Variable squeeze(const Variable& x, int dim, Pass& pass);
/// Broadcasts x to a shape.
Variable expand(const Variable& x, const Shape& shape, Pass& pass);
/// Elements begin … end - 1 of a dimension; negative indices count from the end. No copy for the
/// first dimension.
Variable slice(const Variable& x, int dim, std::int64_t begin, std::int64_t end, Pass& pass);
/// Splits a dimension into parts of these sizes.
std::vector<Variable> split(const Variable& x, const std::vector<std::int64_t>& sizes, int dim,
                            Pass& pass);
Variable concat(const std::vector<Variable>& parts, int dim, Pass& pass);
/// Joins along a new dimension.
Variable stack(const std::vector<Variable>& parts, int dim, Pass& pass);
/// Pads with `value`. `amounts`: before and after for each dimension, the last dimension first.
Variable pad(const Variable& x, const std::vector<std::int64_t>& amounts, double value, Pass& pass);
/// Reverses these dimensions.
Variable flip(const Variable& x, const Dims& dims, Pass& pass);
/// y[i, j, …] = x[…] with index[i, j, …] as the index along `dim`. The index is int32 with x's
/// shape except for that dimension. An index out of range is Error(kUsage) on a CPU and gives NaN
/// on a GPU.
Variable gather(const Variable& x, int dim, const Tensor& index, Pass& pass);
/// Selects elements of a dimension by a list of int32 indices.
Variable index_select(const Variable& x, int dim, const Tensor& index, Pass& pass);
/// x plus `source`, each element of which is added at the index along `dim` that `index` has for
/// it. source and index have the same shape, x's except for that dimension. Elements with the same
/// target are added in order. An index out of range is Error(kUsage) on a CPU and ignored on a GPU.
Variable scatter_add(const Variable& x, int dim, const Tensor& index, const Variable& source,
                     Pass& pass);
/// One-hot rows of int32 class indices, in an additional dimension; without a gradient. An index
/// out of range is Error(kUsage) on a CPU and gives a row of NaN on a GPU.
Variable one_hot(const Tensor& index, std::int64_t classes, DType dtype, Pass& pass);

/// Matrix product with PyTorch's rules: the last two dimensions are matrices, those before are
/// broadcast; an operand of one dimension is a row on the left, a column on the right, and that
/// dimension is removed from the result.
Variable matmul(const Variable& a, const Variable& b, Pass& pass);

/// The dimension of heads in queries, keys and values: N×H×T×D, or N×T×H×D.
enum class HeadsAt : std::uint8_t { kSecond, kThird };
/// softmax(scale · q·kᵀ + mask) · v, as in PyTorch, for q[N,H,T,D] and k, v[N,Hkv,S,D], with memory
/// linear in T and S. Hkv divides H: adjacent heads of q share a head of k and v. mask (optional,
/// without a gradient): numbers of q's dtype, broadcast to [N,H,T,S]. `places`: which keys query i
/// attends to, {} all, true those with j <= i, {true, window} of these the last `window`; with
/// pass.positions of these the ones in its document. Default scale: 1/√D. In training weights are
/// dropped with probability `dropout`, which uses one number of pass.dropout_counter. A query
/// without keys gives zeros and has no gradient.
Variable scaled_dot_product_attention(const Variable& q, const Variable& k, const Variable& v,
                                      const Tensor& mask, AttentionMask places,
                                      std::optional<double> scale, double dropout, Pass& pass,
                                      HeadsAt heads = HeadsAt::kSecond);
/// Attention of a single projection [N,T,(H + 2·Hkv)·D] with the queries of all heads, then keys,
/// then values; returns [N,T,H·D]. No copies.
Variable packed_attention(const Variable& qkv, std::int64_t heads, std::int64_t kv_heads,
                          const Tensor& mask, AttentionMask places, std::optional<double> scale,
                          double dropout, Pass& pass);
/// Rotary position embedding: pair i of a row's D numbers is rotated by position · base^(-2i/D);
/// `frequencies`: the base, or with it how they are scaled.
/// Pairs are numbers i and i + D/2, or with `interleaved` 2i and 2i + 1. positions: int32,
/// broadcast to all dimensions of x but the last: [T] for N×H×T×D, [T,1] for N×T×H×D.
Variable rotary(const Variable& x, const Tensor& positions, const RotaryFrequencies& frequencies,
                bool interleaved, Pass& pass);
/// With positions first, first + 1, … along dimension `dim` of x, which is not the last.
Variable rotary(const Variable& x, int dim, std::int64_t first,
                const RotaryFrequencies& frequencies, bool interleaved, Pass& pass);

/// A parameter as an operand, in bf16 or fp16 its low-precision copy. Its gradient is added to the
/// parameter's.
Variable parameter(Parameter& weight, Pass& pass);

Variable conv2d(const Variable& x, Parameter& weight, Parameter* bias, const Window2d& window,
                Pass& pass);
/// The transposed convolution of PyTorch, i.e. the gradient of conv2d with this weight and window
/// with respect to its input. x[N,H,W,I] becomes images of (H - 1)·stride - 2·padding +
/// dilation·(kernel - 1) + output_padding + 1 pixels along each axis. weight is I×kH×kW×O/groups,
/// in files I×O/groups×kH×kW. output_padding must be less than the stride.
Variable conv_transpose2d(const Variable& x, Parameter& weight, Parameter* bias,
                          const Window2d& window, const std::array<std::int64_t, 2>& output_padding,
                          Pass& pass);
/// x[…,I] · weightᵀ[I,O] + bias[O], then ReLU if `relu`; weight is O×I.
Variable linear(const Variable& x, Parameter& weight, Parameter* bias, Pass& pass,
                bool relu = false);
/// gelu(linear(x, …)) in the tanh form: where the backend can, in the product's own pass. Of a
/// linear() that alone takes the result, the gradient goes through GELU in its product, too.
Variable linear_gelu(const Variable& x, Parameter& weight, Parameter* bias, Pass& pass);
/// A term of low rank, added to a matrix: scale · (x · aᵀ) · bᵀ, with a of R×I and b of O×R: LoRA
/// (arXiv 2106.09685).
struct LowRank {
  Parameter *a = nullptr, *b = nullptr;
  double scale = 1.0;
};
/// linear(x, …) plus the term, which is added by its second product. `term_x`: what the term takes
/// in x's place, such as x after dropout; without a value: x.
Variable linear(const Variable& x, Parameter& weight, Parameter* bias, const LowRank& term,
                const Variable& term_x, Pass& pass);

/// Batch normalisation over all but the last dimension, then + residual (if it has a value), then
/// `active` (kNone, kRelu or kRelu6), as one operation.
struct BatchNormState {
  Parameter* gamma = nullptr;
  Parameter* beta = nullptr;
  ModelBuffer* running_mean = nullptr;
  ModelBuffer* running_var = nullptr;
  /// Optional int64 scalar, incremented in every training pass
  ModelBuffer* batches_tracked = nullptr;
  double eps = 1e-5, momentum = 0.1;
};
/// Normalises by the statistics of the batch, or of several ranks (layers/norm_statistics.h). In
/// training every channel needs two values at least (Error(kUsage)). Outside of training, and if
/// neither gamma nor beta is trainable, the running statistics are used as constants.
Variable batch_norm(const Variable& x, const BatchNormState& state, Activation active,
                    const Variable& residual, Pass& pass);
/// Normalises over the last dimension.
Variable layer_norm(const Variable& x, Parameter& gamma, Parameter& beta, double eps, Pass& pass);
/// x / √(mean of x² over the last dimension + eps) · weight.
Variable rms_norm(const Variable& x, Parameter& weight, double eps, Pass& pass);
/// Normalises each sample of x[N, …, C] over all dimensions in between and over groups of C /
/// num_groups channels, then · gamma[C] + beta[C] if they are given. Sums are fp32 at least.
Variable group_norm(const Variable& x, std::int64_t num_groups, Parameter* gamma, Parameter* beta,
                    double eps, Pass& pass);
/// group_norm() with a group for each channel.
Variable instance_norm(const Variable& x, Parameter* gamma, Parameter* beta, double eps,
                       Pass& pass);
/// Rows of table[rows, columns]: int32 tokens of any shape become [tokens' shape, columns] in the
/// type of the table's operand.
Variable embedding(const Tensor& tokens, Parameter& table, Pass& pass);
/// scale[C] · x along the last dimension, + residual (if it has a value), as one operation.
Variable layer_scale(const Variable& x, Parameter& scale, const Variable& residual, Pass& pass);
Variable activation(const Variable& x, Activation kind, Pass& pass);
/// Pooling over windows: maximum, mean or blur.
Variable pool2d(const Variable& x, Pooling kind, const Window2d& window, Pass& pass);
/// Images resized by scale_factor: Resampling::kNearest or kBilinear (with align_corners false).
/// Sizes are rounded down.
Variable upsample(const Variable& x, double scale_factor, Resampling mode, Pass& pass);
/// Images resized to `size`; each pixel is the mean of the pixels that it covers.
Variable adaptive_avg_pool2d(const Variable& x, const std::array<std::int64_t, 2>& size,
                             Pass& pass);
/// ResNet's option-A shortcut: takes every `stride`-th pixel, and adds channels of zeros, half of
/// them before and half after the existing ones.
Variable subsample_pad(const Variable& x, std::int64_t stride, std::int64_t channels, Pass& pass);
/// The same elements in another shape.
Variable reshape(const Variable& x, const Shape& shape, Pass& pass);
/// [N,H,W,C] → [N, C·H·W] in PyTorch's order; any other rank is only reshaped.
Variable flatten(const Variable& x, Pass& pass);
/// Keeps a value with probability 1 - p and scales it by 1/(1 - p) in training; the identity
/// otherwise. Increments pass.dropout_counter. Each `run` adjacent values are kept or dropped
/// together; it must divide their number.
Variable dropout(const Variable& x, double p, Pass& pass, std::int64_t run = 1);
/// Dropout of whole samples: a sample's values all become 0 with probability p in training, or are
/// all scaled by 1/(1 - p).
Variable stochastic_depth(const Variable& x, double p, Pass& pass);
/// x in another floating format, without a gradient; x itself if it has that format.
Tensor in_format(const Tensor& x, DType format, Backend& backend);
/// Mean cross entropy over the rows of logits[…,C], times `scale`; a scalar. labels: int32 […]
/// class indices, where kIgnoreIndex is ignored (the loss is 0 if all are), or probabilities of the
/// classes, […,C].
constexpr std::int32_t kIgnoreIndex = -100;
Variable cross_entropy(const Variable& logits, const Tensor& labels, double label_smoothing,
                       double scale, Pass& pass);
/// Computes logits x[N,F]·weight[V,F]ᵀ in chunks of `rows` rows and calls use(first row, logits)
/// for each, so that they are never all in memory; 0: as many rows as have 2²⁴ elements, on a GPU
/// 2 GiB. Long rows are aligned: the logits are the first V columns, the others padding
/// (TargetLoss::classes), filled with `padding` if given.
void logits_by_rows(Backend& backend, const Tensor& x, const Tensor& weight, std::int64_t rows,
                    const std::function<void(std::int64_t first, const View& logits)>& use,
                    std::optional<double> padding = {});
/// cross_entropy(linear(x, weight), targets) without smoothing, computing `rows` rows of logits at
/// a time (logits_by_rows()). Gradients of x and weight are computed in the same loop and kept, in
/// fp32 at least.
Variable linear_cross_entropy(const Variable& x, Parameter& weight, const Tensor& targets,
                              double scale, Pass& pass, std::int64_t rows = 0);
/// The mean of all elements times `scale`, as the last operation of a loss: fp32 if x is in low
/// precision, with a gradient that includes the pass's loss scale. Error(kUsage) in a captured
/// graph, where that scale would be constant.
Variable mean_loss(const Variable& x, double scale, Pass& pass);
struct TargetLossSettings {
  LossKind kind = LossKind::kCrossEntropy;
  double parameter = 0.0;        ///< γ of kFocal, δ of kHuber
  double label_smoothing = 0.0;  ///< of kCrossEntropy and kFocal
  Tensor class_weights = {};     ///< of kCrossEntropy and kFocal: fp64 [C], or none
  /// Of kCrossEntropy and kFocal: ignores rows with this class index; the loss is 0 if all are
  std::optional<std::int32_t> ignore_index = {};
};
/// Mean over the rows of x[…,C] for kCrossEntropy and kFocal, otherwise over all elements, times
/// `scale`; a scalar, in fp32 if x is in low precision. targets: floating, of x's shape; or int32
/// […] class indices, equivalent to one-hot rows. With class weights w the mean for class indices y
/// is Σ w_y·l / Σ w_y (0 if that sum is 0); for other targets it is Σ / N.
Variable target_loss(const Variable& x, const Tensor& targets, const TargetLossSettings& settings,
                     double scale, Pass& pass);

}  // namespace starling::functions
