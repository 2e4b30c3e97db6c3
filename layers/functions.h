#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/autograd.h"
#include "core/backend.h"
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

// Pointwise functions: PyTorch's of the same name. Operands broadcast as NumPy's do, and have one
// floating dtype; one of two is a value at least. A chain of them is one pass over memory, forward
// and backward: it runs when something else reads its value, in fp32 for bf16 and fp16, and is
// rounded once. The gradient of a repeated operand is the sum over what it was repeated for, in an
// order that depends on the sizes alone. Error(kUsage) where shapes do not broadcast or dtypes
// differ.
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
// Comparisons are 1 or 0 in the operands' dtype, and have no gradient; the gradient of a maximum or
// minimum is shared by equal operands.
Variable equal(const Operand& a, const Operand& b, Pass& pass);
Variable not_equal(const Operand& a, const Operand& b, Pass& pass);
Variable less(const Operand& a, const Operand& b, Pass& pass);
Variable less_equal(const Operand& a, const Operand& b, Pass& pass);
Variable greater(const Operand& a, const Operand& b, Pass& pass);
Variable greater_equal(const Operand& a, const Operand& b, Pass& pass);
enum class GeluForm : std::uint8_t { kNone, kTanh };  ///< exact, or by tanh
Variable gelu(const Variable& x, Pass& pass, GeluForm form = GeluForm::kNone);
/// min(max(x, low), high). The gradient passes where x is within the limits.
Variable clamp(const Variable& x, double low, double high, Pass& pass);
/// a where the condition is not 0, b where it is. The condition has the operands' dtype and no
/// gradient.
Variable where(const Variable& condition, const Operand& a, const Operand& b, Pass& pass);
/// Dimensions; negative ones count from the end: -1 is the last.
using Dims = std::vector<int>;
/// Normalises `dim` to be nonnegative. Error(kUsage), starting with `name`, if out of range.
int dimension(std::string_view name, const Shape& shape, int dim);

// Reductions over dimensions (none given: over all), which go, or with `keepdim` stay with size 1.
// The gradient of max and min is shared by equal numbers. Sums are taken in fp32 at least, in an
// order that depends on the sizes alone. Errors are as of pointwise functions.
Variable sum(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
Variable mean(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
Variable max(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
Variable min(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
/// Σ (x - mean)² / (n - correction).
Variable variance(const Variable& x, const Dims& dims, double correction, bool keepdim, Pass& pass);
Variable logsumexp(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
/// √Σ x².
Variable norm(const Variable& x, const Dims& dims, bool keepdim, Pass& pass);
/// The place of the largest number along a dimension, of equal ones the first; NaN is larger than
/// any. int32, without a gradient.
Tensor argmax(const Variable& x, int dim, bool keepdim, Pass& pass);
/// The k largest along a dimension, from the largest on, and their places (int32), in argmax()'s
/// order. The gradient goes to where the values came from.
struct TopValues {
  Variable values;
  Tensor index;
};
TopValues topk(const Variable& x, std::int64_t k, int dim, Pass& pass);
/// Each number becomes the sum of those up to it, taken in fp64.
Variable cumsum(const Variable& x, int dim, Pass& pass);
Variable softmax(const Variable& x, int dim, Pass& pass);
Variable log_softmax(const Variable& x, int dim, Pass& pass);

/// The shape that two broadcast to, as NumPy's do. Error(kUsage), which begins with the name, where
/// they do not.
Shape broadcast(std::string_view name, const Shape& a, const Shape& b);

// Functions that move numbers, of any dtype; they copy unless said otherwise.
/// Dimension d of the result is dimension dims[d] of x.
Variable permute(const Variable& x, const Dims& dims, Pass& pass);
Variable transpose(const Variable& x, int dim_a, int dim_b, Pass& pass);
/// With a dimension of size 1 at `dim`, or without one; no copy.
Variable unsqueeze(const Variable& x, int dim, Pass& pass);
Variable squeeze(const Variable& x, int dim, Pass& pass);
/// Broadcasts x to a shape.
Variable expand(const Variable& x, const Shape& shape, Pass& pass);
/// Indices begin … end - 1 of a dimension; negative ones count from the end. No copy along the
/// first dimension.
Variable slice(const Variable& x, int dim, std::int64_t begin, std::int64_t end, Pass& pass);
/// Splits a dimension into parts of these sizes.
std::vector<Variable> split(const Variable& x, const std::vector<std::int64_t>& sizes, int dim,
                            Pass& pass);
Variable concat(const std::vector<Variable>& parts, int dim, Pass& pass);
/// Along a new dimension.
Variable stack(const std::vector<Variable>& parts, int dim, Pass& pass);
/// Pads with `value`. `amounts`: before and after for each dimension, the last dimension first.
Variable pad(const Variable& x, const std::vector<std::int64_t>& amounts, double value, Pass& pass);
/// Reverses these dimensions.
Variable flip(const Variable& x, const Dims& dims, Pass& pass);
/// y[i, j, …] = x with index[i, j, …] in place of its number along `dim`. The index is int32, of
/// x's shape but for that dimension; a number outside is Error(kUsage) on a CPU, on a GPU NaN.
Variable gather(const Variable& x, int dim, const Tensor& index, Pass& pass);
/// The places of a dimension that a list of int32 names.
Variable index_select(const Variable& x, int dim, const Tensor& index, Pass& pass);
/// x, to which each number of `source` is added in the place along `dim` that the index has for it;
/// the two are of one shape, which is x's but for that dimension. Those of one place are added in
/// their order. A number outside is Error(kUsage) on a CPU; on a GPU what belongs there is left
/// out.
Variable scatter_add(const Variable& x, int dim, const Tensor& index, const Variable& source,
                     Pass& pass);
/// int32 numbers of classes as rows with a 1 in that place and else 0, a dimension more; without a
/// gradient. One outside is Error(kUsage) on a CPU, on a GPU a row of NaN.
Variable one_hot(const Tensor& index, std::int64_t classes, DType dtype, Pass& pass);

/// PyTorch's rules: the last two dimensions are matrices, those before broadcast; an operand of one
/// dimension is a row on the left, a column on the right, and its dimension goes.
Variable matmul(const Variable& a, const Variable& b, Pass& pass);

/// Which dimension of queries, keys and values counts heads: N×H×T×D, or N×T×H×D.
enum class HeadsAt : std::uint8_t { kSecond, kThird };
/// softmax(scale · q·kᵀ + mask) · v, PyTorch's, of q[N,H,T,D] and k, v[N,Hkv,S,D], in memory linear
/// in T and S. Hkv divides H: heads of k and v are shared by neighbouring ones of q. mask, without
/// a gradient: none, or numbers of q's dtype that broadcast to [N,H,T,S]. `causal`: query i sees
/// the keys j <= i. No scale: 1/√D. In training a weight is dropped with probability `dropout`;
/// that takes one number of pass.dropout_counter. A query that sees no key has zeros, and no
/// gradient.
Variable scaled_dot_product_attention(const Variable& q, const Variable& k, const Variable& v,
                                      const Tensor& mask, bool causal, std::optional<double> scale,
                                      double dropout, Pass& pass, HeadsAt heads = HeadsAt::kSecond);
/// The same of one projection [N,T,(H + 2·Hkv)·D], the queries of all heads, then keys, then
/// values: [N,T,H·D], without a copy.
Variable packed_attention(const Variable& qkv, std::int64_t heads, std::int64_t kv_heads,
                          const Tensor& mask, bool causal, std::optional<double> scale,
                          double dropout, Pass& pass);
/// Rotary position embedding: pair i of a row's D numbers is turned by position · base^(-2i/D).
/// Pairs are numbers i and i + D/2, or `interleaved` 2i and 2i + 1. positions: int32, broadcast to
/// x's dimensions but the last: [T] for N×H×T×D, [T,1] for N×T×H×D.
Variable rotary(const Variable& x, const Tensor& positions, double base, bool interleaved,
                Pass& pass);
/// The same with positions first, first + 1, … along a dimension of x but the last.
Variable rotary(const Variable& x, int dim, std::int64_t first, double base, bool interleaved,
                Pass& pass);

/// A parameter as an operand: its low-precision copy in bf16 and fp16. Its gradient goes where
/// a layer's would.
Variable parameter(Parameter& weight, Pass& pass);

Variable conv2d(const Variable& x, Parameter& weight, Parameter* bias, const Window2d& window,
                Pass& pass);
/// What conv2d with this weight and window takes back to its input's size, its gradient: PyTorch's
/// transposed convolution. x[N,H,W,I] becomes images of (H - 1)·stride - 2·padding +
/// dilation·(kernel - 1) + output_padding + 1 pixels along each axis; weight is I×kH×kW×O/groups,
/// outside I×O/groups×kH×kW. output_padding is below the stride.
Variable conv_transpose2d(const Variable& x, Parameter& weight, Parameter* bias,
                          const Window2d& window, const std::array<std::int64_t, 2>& output_padding,
                          Pass& pass);
/// x[…,I] · weightᵀ[I,O] + bias[O], then ReLU if `relu`; weight is O×I.
Variable linear(const Variable& x, Parameter& weight, Parameter* bias, Pass& pass,
                bool relu = false);

/// Batch normalisation over all but the last dimension, then + residual (if it holds a value), then
/// `active`, which is kNone, kRelu or kRelu6, as one operation.
struct BatchNormState {
  Parameter* gamma = nullptr;
  Parameter* beta = nullptr;
  ModelBuffer* running_mean = nullptr;
  ModelBuffer* running_var = nullptr;
  /// Optional int64 scalar: one more with every pass in training
  ModelBuffer* batches_tracked = nullptr;
  double eps = 1e-5, momentum = 0.1;
};
/// Normalises over a batch, or as the pass says (layers/norm_statistics.h). In training every
/// channel needs two values at least (Error(kUsage)). Otherwise, and where neither gamma nor beta
/// is trainable, the running statistics are constants.
Variable batch_norm(const Variable& x, const BatchNormState& state, Activation active,
                    const Variable& residual, Pass& pass);
/// Normalises over the last dimension.
Variable layer_norm(const Variable& x, Parameter& gamma, Parameter& beta, double eps, Pass& pass);
/// x / √(mean of x² over the last dimension + eps) · weight.
Variable rms_norm(const Variable& x, Parameter& weight, double eps, Pass& pass);
/// Normalises each sample of x[N, …, C] over all dimensions between and groups of C / num_groups
/// channels, then · gamma[C] + beta[C], if they are there. Sums are fp32 at least.
Variable group_norm(const Variable& x, std::int64_t num_groups, Parameter* gamma, Parameter* beta,
                    double eps, Pass& pass);
/// group_norm() with a group for each channel.
Variable instance_norm(const Variable& x, Parameter* gamma, Parameter* beta, double eps,
                       Pass& pass);
/// Rows of table[rows, columns] by number: tokens, int32 of any shape, become [tokens' shape,
/// columns] of the table's operand's type.
Variable embedding(const Tensor& tokens, Parameter& table, Pass& pass);
/// scale[C] · x along the last dimension, + residual (if it holds a value), as one operation.
Variable layer_scale(const Variable& x, Parameter& scale, const Variable& residual, Pass& pass);
Variable activation(const Variable& x, Activation kind, Pass& pass);
/// The largest, the mean, or the blur of every window (Pooling).
Variable pool2d(const Variable& x, Pooling kind, const Window2d& window, Pass& pass);
/// Images scale_factor times as large, or smaller: Resampling::kNearest or kBilinear (with
/// align_corners false). Sizes are rounded down.
Variable upsample(const Variable& x, double scale_factor, Resampling mode, Pass& pass);
/// Images of a size, each pixel the mean of those that it covers.
Variable adaptive_avg_pool2d(const Variable& x, const std::array<std::int64_t, 2>& size,
                             Pass& pass);
/// ResNet's option-A shortcut: every `stride`-th pixel, new channels zero, half of them before and
/// half after the old ones.
Variable subsample_pad(const Variable& x, std::int64_t stride, std::int64_t channels, Pass& pass);
/// The numbers in another shape.
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
/// The numbers of x in another floating format, without a gradient; itself where it is in that one.
Tensor in_format(const Tensor& x, DType format, Backend& backend);
/// Mean over the rows of logits[…,C] times `scale`; a scalar. labels: int32 […], where kIgnoreIndex
/// is ignored (0 if all are), or a probability of each class, […,C].
constexpr std::int32_t kIgnoreIndex = -100;
Variable cross_entropy(const Variable& logits, const Tensor& labels, double label_smoothing,
                       double scale, Pass& pass);
/// Computes logits x[N,F]·weight[V,F]ᵀ in chunks of `rows` rows and calls use(first row, logits)
/// for each, so that they are never all in memory; 0: as many rows as have 2²⁴ elements, on a GPU
/// 2²⁶. Long rows are aligned: the logits are the first V columns, the others padding
/// (TargetLoss::classes), filled with `padding` if given.
void logits_by_rows(Backend& backend, const Tensor& x, const Tensor& weight, std::int64_t rows,
                    const std::function<void(std::int64_t first, const View& logits)>& use,
                    std::optional<double> padding = {});
/// cross_entropy(linear(x, weight), targets) without smoothing, of which `rows` rows of logits are
/// there at once (logits_by_rows()). Gradients are made in the same loop: kept
/// are those of x and of the weight, in fp32 at least.
Variable linear_cross_entropy(const Variable& x, Parameter& weight, const Tensor& targets,
                              double scale, Pass& pass, std::int64_t rows = 0);
/// The mean of all numbers times `scale`, as the end of a loss: fp32 where they are in low
/// precision, with a gradient that has the pass's loss scale. In a graph, which would freeze that
/// scale, it is Error(kUsage).
Variable mean_loss(const Variable& x, double scale, Pass& pass);
struct TargetLossSettings {
  LossKind kind = LossKind::kCrossEntropy;
  double parameter = 0.0;        ///< γ of kFocal, δ of kHuber
  double label_smoothing = 0.0;  ///< of kCrossEntropy and kFocal
  Tensor class_weights = {};     ///< of these too: fp64 [C], or none
  /// Of these too: rows with this class index are ignored; the loss is 0 if all are
  std::optional<std::int32_t> ignore_index = {};
};
/// Mean over the rows of x[…,C] for kCrossEntropy and kFocal, otherwise over all elements, times
/// `scale`; a scalar, in fp32 if x is in low precision. targets: floating, of x's shape; or int32
/// […] class indices, equivalent to one-hot rows. With class weights w the mean for class indices y
/// is Σ w_y·l / Σ w_y (0 if that sum is 0); for other targets it is Σ / N.
Variable target_loss(const Variable& x, const Tensor& targets, const TargetLossSettings& settings,
                     double scale, Pass& pass);

}  // namespace starling::functions
