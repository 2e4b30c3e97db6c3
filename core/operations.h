#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "core/tensor.h"

// The operations of a backend: what each takes, what it does, and which tensors it reads and
// writes; and at the end the one list of them, STARLING_OPERATIONS, which all that concerns every
// operation is made from: declarations (core/backend.h), forwarding, the meta backend, checks of
// the order between streams, counts of bytes and arithmetic. A new operation is a struct and a line
// of the list here; a function of CpuBackend and one of CudaBackend; rows in tests/operations; and
// what calls it in layers/.
namespace starling {

enum class Pooling : std::uint8_t;
struct Window2d;

/// Which tensors a call reads and writes: what a check of the order between streams needs to know;
/// and how much it moves and computes. An output that is added to is read and written. Where only
/// part of a tensor is touched it is a view of that part, if it can be one; where it depends on
/// numbers whether a tensor is read, it is.
struct Accesses {
  std::vector<Tensor> reads, writes;  ///< none of them empty
  /// The least that goes through the device's memory: each tensor once for each list that it is in,
  /// but for what is said below.
  double bytes = 0.0;
  double flops = 0.0;  ///< of convolutions and matrix products, two per multiply-add

  Accesses& read(std::initializer_list<Tensor> tensors) { return add(reads, tensors); }
  Accesses& write(std::initializer_list<Tensor> tensors) { return add(writes, tensors); }
  Accesses& change(std::initializer_list<Tensor> tensors) { return read(tensors).write(tensors); }
  /// Outputs that are overwritten, or with `accumulate` added to.
  Accesses& output(bool accumulate, std::initializer_list<Tensor> tensors) {
    return accumulate ? change(tensors) : write(tensors);
  }
  /// Changed beside the work: a few numbers whose bytes do not count.
  Accesses& aside(std::initializer_list<Tensor> tensors);
  /// Bytes moved once more: of what a batch needs as a whole before it can go on.
  Accesses& again(double more) { return bytes += more, *this; }
  /// Read in part: the pixels that `other` has, in the channels that both have.
  Accesses& read_part(const Tensor& x, const Tensor& other);
  /// A convolution: each number of `images` is one product with a filter, or goes into it.
  Accesses& convolves(const Tensor& images, const Tensor& weight);
  /// A matrix product c of a and another.
  Accesses& multiplies(const Tensor& a, const Tensor& c);
  /// A pooling of `results` numbers, if it is a blur, which is a convolution of every channel
  /// alone.
  Accesses& blurs(Pooling kind, const Tensor& results, const Window2d& window);

 private:
  Accesses& add(std::vector<Tensor>& to, std::initializer_list<Tensor> tensors);
};
/// 0 for empty ones.
double bytes_of(std::initializer_list<Tensor> tensors);

// -------------------------------------------------------------------------------------------------
// Arguments of the operations. Tensors are contiguous; floating tensors of one call share a dtype
// unless said otherwise. "accumulate" adds to the output instead of overwriting it. An empty Tensor
// means "not wanted" where a comment says optional. No output may alias an input unless a comment
// allows it.
// Low precision: where activations (x, y, dy, dx, residuals, logits) are bf16 or fp16, weights of
// products have their dtype, and everything else is fp32: biases, gamma, beta, statistics, losses,
// and the gradients of parameters (dweight, dbias, dgamma, dbeta, the y of SumRows, the c of a
// Matmul that makes a weight's gradient). Arithmetic and sums are fp32 at least.
// -------------------------------------------------------------------------------------------------

/// Geometry of a 2-D convolution or pooling: {height, width} of each.
struct Window2d {
  std::array<std::int64_t, 2> kernel{1, 1};
  std::array<std::int64_t, 2> stride{1, 1};
  std::array<std::int64_t, 2> padding{0, 0};
  std::array<std::int64_t, 2> dilation{1, 1};
  std::int64_t groups = 1;

  /// Output height (axis 0) or width (axis 1) for an input of `size`: floor((size + 2p - d(k-1) -
  /// 1)/s) + 1.
  std::int64_t output(int axis, std::int64_t size) const {
    const auto i = static_cast<std::size_t>(axis);
    return (size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1;
  }
};

/// y[N,P,Q,O] = x[N,H,W,C] * weight[O,kH,kW,C/groups] (+ bias[O], optional).
struct Conv2dForward {
  Tensor x, weight, bias, y;
  Window2d window;
  Accesses accesses() const {
    return Accesses().read({x, weight, bias}).write({y}).convolves(y, weight);
  }
};
/// dx from dy and the weight.
struct Conv2dBackwardData {
  Tensor dy, weight, dx;
  Window2d window;
  Accesses accesses() const {
    return Accesses().read({dy, weight}).write({dx}).convolves(dy, weight);
  }
};
/// dweight (and dbias, optional) from x and dy.
struct Conv2dBackwardWeights {
  Tensor x, dy, dweight, dbias;
  Window2d window;
  bool accumulate = false;
  Accesses accesses() const {
    return Accesses().read({x, dy}).output(accumulate, {dweight, dbias}).convolves(dy, dweight);
  }
};

/// c[M,N] = op(a) · op(b) (+ bias[N], optional, added to each row), then ReLU if `relu` (not with
/// `accumulate`; NaN stays NaN); op transposes where asked. For low-precision a and b, c may be
/// fp32 or of their dtype.
struct Matmul {
  Tensor a, b, bias, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  bool relu = false;
  Accesses accesses() const {
    return Accesses().read({a, b, bias}).output(accumulate, {c}).multiplies(a, c);
  }
};

/// y[C] = Σ over rows of x[R,C].
struct SumRows {
  Tensor x, y;
  bool accumulate = false;
  Accesses accesses() const { return Accesses().read({x}).output(accumulate, {y}); }
};

enum class Activation : std::uint8_t { kNone, kRelu, kGelu, kSilu, kRelu6 };

/// y = activation(x). y may be x for ReLU and ReLU6, which is min(max(x, 0), 6). GELU is the exact
/// one, x·Φ(x).
struct ActivationForward {
  Activation kind = Activation::kRelu;
  Tensor x, y;
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};
/// dx = dy · activation'(x). For ReLU and ReLU6 `x` may be the forward's output as well. dx may be
/// dy.
struct ActivationBackward {
  Activation kind = Activation::kRelu;
  Tensor x, dy, dx;
  Accesses accesses() const { return Accesses().read({x, dy}).write({dx}); }
};

/// ReLU's `ceiling` where there is none. 6 makes it ReLU6: min(max(x, 0), ceiling), whose gradient
/// is masked by 0 < y < ceiling.
inline constexpr double kNoCeiling = std::numeric_limits<double>::infinity();

/// Batch normalisation of x[R,C] or x[N,H,W,C] over all but the last dimension, then + residual
/// (optional), then ReLU if `relu`, with its `ceiling`. In training mean and 1/sqrt(variance + eps)
/// of the batch (biased variance) are saved for the backward pass, and the running statistics move
/// by `momentum` towards the batch's mean and unbiased variance. gamma and beta are optional.
struct BatchNormForward {
  Tensor x, residual, gamma, beta, y;
  Tensor running_mean, running_var;  ///< updated in training, read in inference
  Tensor saved_mean, saved_inv_std;  ///< [C]; written in training, and in inference where given
  double eps = 1e-5, momentum = 0.1;
  bool training = true, relu = false;
  Tensor batches_tracked;  ///< int64 scalar, optional: one more in training
  double ceiling = kNoCeiling;
  Accesses accesses() const {
    Accesses result =
        Accesses().read({x, residual, gamma, beta}).write({y, saved_mean, saved_inv_std});
    if (!training) return result.read({running_mean, running_var});
    return result.again(bytes_of({x})).aside({running_mean, running_var, batches_tracked});
  }
};
/// The gradient of y may come as the sum of one or two terms (dy, dy2 optional). With `relu`, y is
/// the forward's output and the gradient is masked by 0 < y < ceiling first. `dresidual` (optional)
/// receives that masked sum, and may be dy or dy2 where the caller owns it. dx may be dy, dy2, x or
/// a y that is not needed any more (each element is read before it is written): that saves a
/// tensor's worth of traffic; but dx and dresidual are two tensors. With training = false the saved
/// statistics are constants (inference-mode normalisation).
struct BatchNormBackward {
  Tensor x, y, dy, dy2, gamma;
  Tensor saved_mean, saved_inv_std;
  Tensor dx, dresidual, dgamma, dbeta;
  bool relu = false, accumulate = false;  ///< accumulate: for dgamma and dbeta
  bool training = true;
  /// Optional, and only where the forward pass added no residual: with beta (and gamma, if any) the
  /// mask is found from x again, before y is rounded to x's dtype, and y may be empty. Faster: one
  /// tensor less is read.
  Tensor beta;
  double ceiling = kNoCeiling;
  Accesses accesses() const {
    const Tensor mask = relu ? y : Tensor();
    Accesses result = Accesses()
                          .read({x, mask, dy, dy2, gamma, beta, saved_mean, saved_inv_std})
                          .write({dx, dresidual})
                          .output(accumulate, {dgamma, dbeta});
    if (!training) return result;
    // The sums come first. The second pass may read the masked sum that the first one writes.
    const double incoming = bytes_of({mask, dy, dy2});
    return result.again(bytes_of({x}) +
                        (dresidual ? std::min(incoming, bytes_of({dresidual})) : incoming));
  }
};

// A batch norm in steps, for convolutions that carry out parts of it (Conv2dForward::norm and sum,
// Conv2dBackwardData::norm): one pass over the data for each step that no convolution takes over.
// Per-channel: [C], fp64 for fp64, else fp32, but sums may be fp64; data as above.

/// sum[c] = Σ x, square_sum[c] = Σ x², over all but the last dimension.
struct ChannelSums {
  Tensor x, sum, square_sum;
  Accesses accesses() const { return Accesses().read({x}).write({sum, square_sum}); }
};
/// From the sums of `count` values per channel to what the batch norm is: mean, 1/sqrt(biased
/// variance + eps), and scale = gamma·inv_std and shift = beta - mean·scale. Moves the running
/// statistics and counts, as BatchNormForward does. Computed in fp64.
struct BatchNormFinish {
  Tensor sum, square_sum, gamma, beta;                ///< gamma and beta optional
  Tensor running_mean, running_var, batches_tracked;  ///< optional
  Tensor saved_mean, saved_inv_std, scale, shift;     ///< written
  std::int64_t count = 0;
  double eps = 1e-5, momentum = 0.1;
  Accesses accesses() const {
    return Accesses()
        .read({sum, square_sum, gamma, beta})
        .change({running_mean, running_var})
        .aside({batches_tracked})
        .write({saved_mean, saved_inv_std, scale, shift});
  }
};
/// y = scale[c]·x + shift[c] (+ residual, optional), then ReLU if `relu`, with its `ceiling`. y may
/// be x or residual.
struct ScaleShift {
  Tensor x, scale, shift, residual, y;
  bool relu = false;
  double ceiling = kNoCeiling;
  Accesses accesses() const { return Accesses().read({x, scale, shift, residual}).write({y}); }
};
/// masked = dy where 0 < gamma·(x - mean)·inv_std + beta < ceiling, else 0 (masked may be dy);
/// sum_dy = Σ masked and sum_dy_xhat = Σ masked·(x - mean)·inv_std, over all but the last
/// dimension.
struct BatchNormBackwardSums {
  Tensor x, dy, saved_mean, saved_inv_std, gamma, beta, masked, sum_dy, sum_dy_xhat;
  double ceiling = kNoCeiling;
  Accesses accesses() const {
    return Accesses()
        .read({x, dy, saved_mean, saved_inv_std, gamma, beta})
        .write({masked, sum_dy, sum_dy_xhat});
  }
};
/// The last step: dx = gamma·inv_std·(dy - sum_dy/n - x̂·sum_dy_xhat/n), n = elements / C, dy being
/// masked already; dgamma = sum_dy_xhat and dbeta = sum_dy, added where `accumulate`. dx may be dy
/// or x.
struct BatchNormBackwardApply {
  Tensor x, dy, gamma, saved_mean, saved_inv_std, sum_dy, sum_dy_xhat, dx, dgamma, dbeta;
  bool accumulate = false;
  Accesses accesses() const {
    return Accesses()
        .read({x, dy, gamma, saved_mean, saved_inv_std, sum_dy, sum_dy_xhat})
        .write({dx})
        .output(accumulate, {dgamma, dbeta});
  }
};

/// Layer normalisation of x[R,C] over C; gamma[C], beta[C]. mean and inv_std are [R].
struct LayerNormForward {
  Tensor x, gamma, beta, y, saved_mean, saved_inv_std;
  double eps = 1e-5;
  Accesses accesses() const {
    return Accesses().read({x, gamma, beta}).write({y, saved_mean, saved_inv_std});
  }
};
struct LayerNormBackward {
  Tensor x, dy, gamma, saved_mean, saved_inv_std, dx, dgamma, dbeta;
  bool accumulate = false;
  Accesses accesses() const {
    return Accesses()
        .read({x, dy, gamma, saved_mean, saved_inv_std})
        .write({dx})
        .output(accumulate, {dgamma, dbeta});
  }
};

enum class Pooling : std::uint8_t { kMax, kAverage, kBlur };
/// The longest side of a blur's window: up to here its weights are exact in every floating type.
inline constexpr std::int64_t kLongestBlur = 7;

/// y[N,P,Q,C] from x[N,H,W,C]. Max pooling writes `index` (int32, shape of y, optional in
/// inference): the flat h·W + w of the first maximum; padding counts as -infinity. Average pooling
/// divides by the window's whole size, padding included, as PyTorch does by default. A blur (Zhang
/// 2019, arXiv 1904.11486) weighs the pixel in row i and column j of a kH×kW window by the binomial
/// filter (kH-1 over i)·(kW-1 over j)/2^(kH+kW-2), [1 2 1]⊗[1 2 1]/16 for 3×3; padding counts as
/// zeros. Without dilation.
struct Pool2dForward {
  Pooling kind = Pooling::kMax;
  Tensor x, y, index;
  Window2d window;
  Accesses accesses() const {
    return Accesses().read({x}).write({y, index}).blurs(kind, y, window);
  }
};
struct Pool2dBackward {
  Pooling kind = Pooling::kMax;
  Tensor dy, index, dx;
  Window2d window;
  Accesses accesses() const {
    return Accesses().read({dy, index}).write({dx}).blurs(kind, dy, window);
  }
};
/// The filters of a blur as a convolution of every channel alone has them, [channels][kH·kW], the
/// same for each channel: one channel's. Error(kInternal) for a window that is longer than
/// kLongestBlur or has a dilation.
std::vector<double> blur_filter(const Window2d& window);
/// y[N,C] = mean over H, W of x[N,H,W,C].
struct GlobalAvgPoolForward {
  Tensor x, y;
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};
struct GlobalAvgPoolBackward {
  Tensor dy, dx;
  Accesses accesses() const { return Accesses().read({dy}).write({dx}); }
};

/// y = a + b. y may be a or b.
struct Add {
  Tensor a, b, y;
  Accesses accesses() const { return Accesses().read({a, b}).write({y}); }
};

/// Option-A shortcut: y[N,ceil(H/s),ceil(W/s),O] takes every s-th pixel of x[N,H,W,C]; channels
/// before `pad_before` and from pad_before + C on are zero.
struct SubsamplePadForward {
  Tensor x, y;
  std::int64_t stride = 2, pad_before = 0;
  Accesses accesses() const { return Accesses().read_part(x, y).write({y}); }
};
struct SubsamplePadBackward {
  Tensor dy, dx;
  std::int64_t stride = 2, pad_before = 0;
  Accesses accesses() const { return Accesses().read_part(dy, dx).write({dx}); }
};

/// y[N, C·H·W] in PyTorch's order C, H, W from x[N,H,W,C]; `inverse` goes back.
struct FlattenChannelsFirst {
  Tensor x, y;
  bool inverse = false;
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};

/// y = x · mask / (1 - p); element i is kept where the Philox number of (key, counter, i) is >= p.
/// The backward pass calls it again on the gradient with the same key and counter, so no mask is
/// stored. y may be x. With a `run`, that many neighbouring elements share a number, that of i /
/// run: whole samples are dropped, for example.
struct Dropout {
  Tensor x, y;
  double p = 0.5;
  std::uint64_t key = 0;
  std::uint64_t counter = 0;  ///< distinct per layer use, step, micro-batch and rank
  std::int64_t run = 1;       ///< divides the number of elements
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};

/// Softmax cross entropy with label smoothing ε: target = (1-ε)·onehot + ε/C. logits [N,C], labels
/// int32 [N]. `loss` (a scalar of the logits' dtype, or fp32 for low precision; on the device)
/// receives the SUM over samples times `scale`; dlogits (optional) receives the gradient of that
/// loss times `gradient_scale` (fp16's loss scale).
struct SoftmaxCrossEntropy {
  Tensor logits, labels, loss, dlogits;
  double label_smoothing = 0.0, scale = 1.0, gradient_scale = 1.0;
  Accesses accesses() const { return Accesses().read({logits, labels}).write({loss, dlogits}); }
};
/// How outputs are compared with targets, PyTorch's definitions (`torch.nn.functional`).
enum class LossKind : std::uint8_t {
  kCrossEntropy,  ///< -Σ_c t_c·log softmax(x)_c of a row, t smoothed by `label_smoothing`
  /// -Σ_c t_c·(1 - p_c)^γ·log p_c of a row, p = softmax(x) (Lin et al., 2017, arXiv:1708.02002)
  kFocal,
  /// Of an element, binary_cross_entropy_with_logits: -t·log σ(x) - (1 - t)·log(1 - σ(x))
  kLogistic,
  kSquared,   ///< (x - t)²
  kAbsolute,  ///< |x - t|
  kHuber,     ///< (x - t)²/2 where |x - t| <= δ, δ·(|x - t| - δ/2) elsewhere
};
/// x[N,C] (more dimensions: the last is C) against targets: int32 [N], numbers of classes that
/// stand for rows with a 1 in that place, or as many numbers as x, in fp32 (fp64 for fp64). `loss`
/// (a scalar like them) receives the SUM over rows, or over elements, times `scale`; dx (optional)
/// receives the gradient of that times `gradient_scale`. Arithmetic is fp64's.
struct TargetLoss {
  LossKind kind = LossKind::kCrossEntropy;
  Tensor x, targets, loss, dx;
  double parameter = 0.0;  ///< γ or δ
  double label_smoothing = 0.0, scale = 1.0, gradient_scale = 1.0;
  Accesses accesses() const { return Accesses().read({x, targets}).write({loss, dx}); }
};

/// Adds into counts (fp64 [C, C + 1], on the device) one for each row of logits [N,C]: in the row
/// of its label (int32 [N]), in the column of the largest logit (the first of equal ones), or in
/// the last column where a logit is NaN.
struct ConfusionCounts {
  Tensor logits, labels, counts;
  Accesses accesses() const { return Accesses().read({logits, labels}).change({counts}); }
};
/// Adds into totals (fp64 [4], on the device): sum of the plain losses, samples whose label's logit
/// is the largest (first index on ties), samples whose label is among the 5 largest, samples
/// counted.
struct ClassificationMetrics {
  Tensor logits, labels, totals;
  Accesses accesses() const { return Accesses().read({logits, labels}).change({totals}); }
};

/// y[i] = table[tokens[i]]: tokens int32 of any shape, table[rows, columns], y of tokens' shape
/// with `columns` behind it. A token outside the table is an Error(kUsage) on a CPU; on a GPU,
/// which cannot stop the call, its row of y becomes NaN.
struct EmbeddingForward {
  Tensor tokens, table, y;
  Accesses accesses() const {
    // Of the table, at most a row for each token.
    return Accesses().read({tokens}).read_part(table, y).write({y});
  }
};
/// dtable[row] = Σ dy[i] over the i whose token is `row`, in their order, in fp64; a parameter's
/// gradient. Tokens outside the table are left out.
struct EmbeddingBackward {
  Tensor tokens, dy, dtable;
  bool accumulate = false;
  Accesses accesses() const { return Accesses().read({tokens, dy}).output(accumulate, {dtable}); }
};

/// y = cast of x to y's dtype.
struct Cast {
  Tensor x, y;
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};

/// Crop, flip and normalise uint8 images: x[B,H,W,C] → y[B,H,W,C] floating. The image is padded by
/// `crop_padding` zeros (before normalising), the window at (offset_y, offset_x) is taken, mirrored
/// where flip is set, then (v/255 - mean)/std per channel. params: int32 [B,3] rows of (offset_y,
/// offset_x, flip), on the device; empty means no augmentation. boxes: int32 [B,K,4] rows of (top,
/// left, bottom, right), K at most 4: box k puts values[k] into y[top … bottom - 1, left … right -
/// 1], later ones over earlier ones. mix: int32 [5], (own in 1/2^24, top, left, bottom, right): at
/// last y = own·y + (1 - own)·y of the image before, of the first that of the last; in that
/// rectangle own is 0. Both are optional and on the device, and their places are those of y.
struct AugmentImages {
  Tensor x, params, y;
  std::int64_t crop_padding = 0;
  std::array<double, 4> mean{}, std{};  ///< per channel, at most 4
  Tensor boxes = {}, mix = {};
  std::array<double, 4> values{};  ///< of the boxes
  Accesses accesses() const { return Accesses().read({x, params, boxes, mix}).write({y}); }
  /// Rectangles of each image.
  std::int64_t boxes_each() const { return boxes ? boxes.shape()[1] : 0; }
};
/// Throws Error(kInternal) where the tensors do not fit each other: what every backend begins with.
void check_augment_images(const AugmentImages& args);

inline constexpr std::int64_t kCutPictureNumbers = 14;  ///< int32 of a CutPicture
/// Makes images of parts of pictures that have any size: y[B,H,W,3] of the bytes x. parts: int32
/// [B,14], for each image a CutPicture (kernels/math/resize_pictures.h), whose `place` counts from
/// x and lies in it with all pixels.
struct ResizePictures {
  Tensor x, parts, y;
  Accesses accesses() const { return Accesses().read({x, parts}).write({y}); }
};
/// Throws Error(kInternal) where the tensors do not fit each other: what every backend begins with.
void check_resize_pictures(const ResizePictures& args);

inline constexpr std::int64_t kPixelStepNumbers = 9;  ///< int32 of a PixelStep
/// Changes the bytes of images: x[B,H,W,C] → y, of at most 4 channels. steps: int32 [B,K,9], for
/// each image K PixelSteps (kernels/math/pixel_steps.h), carried out up to the first that is kNone.
/// `scratch` is as large as x, and none of the three overlap.
struct ChangePixels {
  Tensor x, steps, scratch, y;
  Accesses accesses() const { return Accesses().read({x, steps}).write({scratch, y}); }
};
/// Throws Error(kInternal) where the tensors do not fit each other: what every backend begins with.
void check_change_pixels(const ChangePixels& args);

/// out = Σ_k weight_k · in_k, at most 8 terms; `accumulate` adds to out. Without it, out may be one
/// of the terms.
struct WeightedSum {
  std::array<Tensor, 8> in;
  std::array<double, 8> weight{};
  int terms = 0;
  Tensor out;
  bool accumulate = false;
  Accesses accesses() const {
    Accesses result;
    for (int i = 0; i < terms; ++i) result.read({in[static_cast<std::size_t>(i)]});
    return result.output(accumulate, {out});
  }
};

/// How numbers travel in fewer bytes. The arithmetic is fp32's (kernels/math/codec.h); numbers of
/// fp64 are rounded to it first.
enum class Code : std::uint8_t {
  kNone,     ///< as they are
  kBf16,     ///< rounded to nearest even
  kInt8,     ///< q·s, s = max|x| / 127 of a block
  kMinMax8,  ///< 256 steps between the least and the largest number of a block
};
/// Of a message of so many elements of `dtype` (fp32 or fp64), a multiple of 4: its codes one after
/// another, then each block's few numbers. `block`: a multiple of 32; 0: the whole message is one.
std::int64_t message_bytes(Code code, DType dtype, std::int64_t elements, std::int64_t block);

/// message = x, encoded: uint8 [message_bytes()].
struct Encode {
  Tensor x, message;
  Code code = Code::kNone;
  std::int64_t block = 0;
  Accesses accesses() const { return Accesses().read({x}).write({message}); }
};
/// out = (Σ_k weight_k · what message k holds) / divisor, at most 8 terms, added up one after
/// another in out's type; with `accumulate` the sum begins with what out holds. The messages have
/// the code, block and number of elements of `out`.
struct Decode {
  std::array<Tensor, 8> messages;
  std::array<double, 8> weight{};
  int terms = 0;
  Tensor out;
  Code code = Code::kNone;
  std::int64_t block = 0;
  double divisor = 1.0;
  bool accumulate = false;
  Accesses accesses() const {
    Accesses result;
    for (int i = 0; i < terms; ++i) result.read({messages[static_cast<std::size_t>(i)]});
    return result.output(accumulate, {out});
  }
};
/// How an update's `received` are encoded: Σ_k weights[k] · what message k holds is the one term
/// that it mixes.
struct EncodedTerms {
  std::vector<double> weights;  ///< empty: they are numbers as they are
  Code code = Code::kNone;
  std::int64_t block = 0;
  /// Of a message's numbers those from `first` on are this update's; 0: they are as many
  std::int64_t first = 0, elements = 0;
  explicit operator bool() const { return !weights.empty(); }
};
/// Throw Error(kInternal) where the arguments do not fit each other: what every backend begins
/// with.
void check_message(const char* operation, const Tensor& message, DType dtype, std::int64_t elements,
                   Code code, std::int64_t block);
void check_encode(const Encode& args);
void check_decode(const Decode& args);

/// totals (fp64, on the device) [i] += Σ (x - y)², y optional: the squared norm. Summed in fp64, in
/// an order that depends on the number of elements alone.
struct SquaredDistance {
  Tensor x, y, totals;
  std::int64_t index = 0;
  Accesses accesses() const {
    return Accesses().read({x, y}).change({totals.slice(index, Shape{1})});
  }
};

/// From squared norms of gradients to what an update needs, on the device, without a wait. norm =
/// scale · sqrt(Σ totals[first … first + count - 1]); control (fp64 [2]) becomes {clip factor,
/// skip}: the factor is min(1, clip / (norm + 1e-6)), or 1 where clip is 0 or norm is NaN; skip is
/// 1 where check_finite is set and the norm is not finite, otherwise 0.
struct GradientControl {
  Tensor totals;  ///< fp64
  std::int64_t first = 0, count = 0;
  double scale = 1.0, clip = 0.0;
  bool check_finite = false;
  Tensor control;
  Accesses accesses() const {
    return Accesses().read({totals.slice(first, Shape{count})}).write({control});
  }
};

class OptimizerRule;  // kernels/optimizer.h

/// Elements that share one entry of UpdateArgs::decay.
inline constexpr std::int64_t kDecayBlock = 32;
/// Such an entry where weight decay applies; 0 elsewhere.
inline constexpr std::uint8_t kDecays = 1;

/// A parameter's place in a bucket: multiples of 32 elements, its padding included, which is zero
/// in all of a bucket's tensors.
struct LayerExtent {
  std::int64_t first = 0, elements = 0;
  bool weight = true;  ///< has two or more dimensions
  /// Of a weight as a matrix: its first dimension, and the product of the others
  std::int64_t rows = 0, columns = 0;
  std::int64_t padding = 0;  ///< how many of `elements` are padding
  /// In UpdateLayers::extents: where its part of the states begins
  std::int64_t state_first = 0;
};

/// Which elements make a parameter, for rules that measure whole parameters first
/// (OptimizerRule::measures_layers): made by make_update_layers (kernels/optimizer.h). A *layer* is
/// one parameter, a *piece* a part of it whose squares are summed together.
struct UpdateLayers {
  Tensor owner;   ///< int32, one per 32 elements: the layer that they belong to
  Tensor pieces;  ///< int32 [pieces, 2]: the first entry of `owner`, and how many
  /// int32 [layers, 4]: the first piece, how many, the first entry of `owner`, and 2·padding + (two
  /// or more dimensions)
  Tensor layers;
  /// fp64 [pieces, 2], memory of the update: squares of c and of what the rule measures
  Tensor sums;
  Tensor factors;  ///< fp64 [layers], memory of the update: what the rule made of the two norms
  /// On the host: the weights that the rule works on as whole matrices after the update, see
  /// run_update() (kernels/optimizer.h).
  std::vector<LayerExtent> matrices;
  std::vector<LayerExtent> extents;  ///< on the host, all layers, where the rule has a workspace
  Tensor workspace;                  ///< of one matrix at a time, or of the rule's issue()
  Tensor matrix_control;             ///< fp64 [2], what their updates have for UpdateArgs::control
  /// UpdateArgs::decay of zeros, for updates of as many elements as the bucket or a state has
  Tensor no_decay;
};

/// One bucket's fused update, semantics.md section 2: mix, scale and clip, decay, rule, all in one
/// pass over memory.
///     c = self_weight · x + Σ_k weights[k] · received[k]     (c = x where received is empty)
///     c = self_weight · x + weights[0] · (received[0] + received[1] + …)     (where sum_received)
///     g = gradient_scale · control[0] · gradient          (control[0] = 1 where control is empty)
///     x_out, states = rule(c, g, states)     (x_out = c, states kept, where control[1] is not 0)
///     low = x_out rounded                    (where low is given)
/// All other tensors hold the same number of elements (a multiple of 32) of one dtype.
struct UpdateArgs {
  Tensor x;         ///< read
  Tensor x_out;     ///< written; may be x
  Tensor gradient;  ///< read
  /// As many as the rule's state_names(); all zero before the first step
  std::vector<Tensor> states;
  std::vector<Tensor> received;  ///< what the neighbours sent
  std::vector<double> weights;   ///< theirs, one each
  /// `received` are a sum's terms, added in this order; weights has one entry. As numbers, a CPU's
  /// update only
  bool sum_received = false;
  EncodedTerms encoded;  ///< of such a sum: `received` are messages
  double self_weight = 1.0;
  double gradient_scale = 1.0;  ///< 1/(loss scale) and all-reduce's 1/n, multiplied
  /// gradient_scale has 1/(loss scale) in it: it follows that of each step where a graph is run
  /// again
  bool unscales = true;
  /// Optional, fp64 [2] on the device: {factor, skip}, see GradientControl
  Tensor control;
  Tensor low;  ///< optional, bf16 or fp16: receives x_out
  /// uint8, one entry per 32 elements: kDecays where weight decay applies
  Tensor decay;
  UpdateLayers layers;    ///< for a rule that measures layers; otherwise not looked at
  double lr = 0.0;        ///< of this update
  std::int64_t step = 1;  ///< the optimizer's s = 1, 2, …
};
/// The update by a rule, an operation like the others.
struct Update {
  const OptimizerRule& rule;
  const UpdateArgs& args;
  Accesses accesses() const {
    Accesses result = Accesses()
                          .read({args.x, args.gradient, args.control, args.decay})
                          .write({args.x_out, args.low});
    for (const Tensor& state : args.states) result.change({state});
    for (const Tensor& received : args.received) result.read({received});
    if (args.layers.owner) {
      result.read({args.layers.owner, args.layers.pieces, args.layers.layers})
          .change({args.layers.sums, args.layers.factors});
    }
    return result;
  }
};

// -------------------------------------------------------------------------------------------------
// The list: X(arguments, name of the function that takes them).
// -------------------------------------------------------------------------------------------------
#define STARLING_OPERATIONS(X)                         \
  X(Conv2dForward, conv2d_forward)                     \
  X(Conv2dBackwardData, conv2d_backward_data)          \
  X(Conv2dBackwardWeights, conv2d_backward_weights)    \
  X(Matmul, matmul)                                    \
  X(SumRows, sum_rows)                                 \
  X(ActivationForward, activation_forward)             \
  X(ActivationBackward, activation_backward)           \
  X(BatchNormForward, batch_norm_forward)              \
  X(BatchNormBackward, batch_norm_backward)            \
  X(ChannelSums, channel_sums)                         \
  X(BatchNormFinish, batch_norm_finish)                \
  X(ScaleShift, scale_shift)                           \
  X(BatchNormBackwardSums, batch_norm_backward_sums)   \
  X(BatchNormBackwardApply, batch_norm_backward_apply) \
  X(LayerNormForward, layer_norm_forward)              \
  X(LayerNormBackward, layer_norm_backward)            \
  X(Pool2dForward, pool2d_forward)                     \
  X(Pool2dBackward, pool2d_backward)                   \
  X(GlobalAvgPoolForward, global_avg_pool_forward)     \
  X(GlobalAvgPoolBackward, global_avg_pool_backward)   \
  X(Add, add)                                          \
  X(SubsamplePadForward, subsample_pad_forward)        \
  X(SubsamplePadBackward, subsample_pad_backward)      \
  X(FlattenChannelsFirst, flatten_channels_first)      \
  X(Dropout, dropout)                                  \
  X(SoftmaxCrossEntropy, softmax_cross_entropy)        \
  X(TargetLoss, target_loss)                           \
  X(ConfusionCounts, confusion_counts)                 \
  X(ClassificationMetrics, classification_metrics)     \
  X(EmbeddingForward, embedding_forward)               \
  X(EmbeddingBackward, embedding_backward)             \
  X(Cast, cast)                                        \
  X(AugmentImages, augment_images)                     \
  X(ResizePictures, resize_pictures)                   \
  X(ChangePixels, change_pixels)                       \
  X(WeightedSum, weighted_sum)                         \
  X(Encode, encode)                                    \
  X(Decode, decode)                                    \
  X(SquaredDistance, squared_distance)                 \
  X(GradientControl, gradient_control)                 \
  X(Update, update)

/// For a backend that has them all: declares its functions.
#define STARLING_OVERRIDE_OPERATION(Arguments, name) void name(const Arguments& args) override;

#define STARLING_COUNT_OPERATION(Arguments, name) +1
inline constexpr int kOperations = 0 STARLING_OPERATIONS(STARLING_COUNT_OPERATION);
#undef STARLING_COUNT_OPERATION

}  // namespace starling
