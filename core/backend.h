#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/device_clock.h"
#include "core/tensor.h"

namespace starling {

/// The streams of a device, in the sense of CUDA: work on one stream runs in issue order, work on two streams runs
/// concurrently unless an event orders it. A CPU backend runs everything at once, in issue order.
enum class StreamKind : std::uint8_t { kCompute, kUpdate, kCommunication, kUpload };
inline constexpr std::size_t kStreamKinds = 4;

/// Marks a point in a stream's work; see Backend::record and Backend::wait.
struct Event {
  std::uint64_t id = 0;
};

struct MemoryStats {
  std::uint64_t system_allocations = 0;  ///< requests that had to go to the operating system or driver
  std::uint64_t allocations = 0;         ///< all requests
  std::size_t in_use = 0;                ///< bytes held by live storages
  std::size_t reserved = 0;              ///< bytes held from the operating system or driver
  std::size_t peak_in_use = 0;
};

// ---------------------------------------------------------------------------------------------------------------
// Arguments of the operations. Tensors are contiguous; floating tensors of one call share a dtype unless said
// otherwise. "accumulate" adds to the output instead of overwriting it. An empty Tensor means "not wanted" where a
// comment says optional. No output may alias an input unless a comment allows it.
// Low precision: where activations (x, y, dy, dx, residuals, logits) are bf16 or fp16, weights of products have their dtype, and
// everything else is fp32: biases, gamma, beta, statistics, losses, and the gradients of parameters (dweight, dbias, dgamma,
// dbeta, the y of SumRows, the c of a Matmul that makes a weight's gradient). Arithmetic and sums are fp32 at least.
// ---------------------------------------------------------------------------------------------------------------

/// Geometry of a 2-D convolution or pooling: {height, width} of each.
struct Window2d {
  std::array<std::int64_t, 2> kernel{1, 1};
  std::array<std::int64_t, 2> stride{1, 1};
  std::array<std::int64_t, 2> padding{0, 0};
  std::array<std::int64_t, 2> dilation{1, 1};
  std::int64_t groups = 1;

  /// Output height (axis 0) or width (axis 1) for an input of `size`: floor((size + 2p - d(k-1) - 1)/s) + 1.
  std::int64_t output(int axis, std::int64_t size) const {
    const auto i = static_cast<std::size_t>(axis);
    return (size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1;
  }
};

/// A batch norm with ReLU that is carried out by whoever loads x: relu(scale[c]·x + shift[c]) is read in x's place, rounded to x's dtype.
/// fp32 [C] (fp64 for fp64). Empty: x is read as it is.
struct NormOnLoad {
  Tensor scale, shift;
  explicit operator bool() const { return static_cast<bool>(scale); }
};
/// For a convolution whose input was relu(batch norm(x)): its data gradient is masked where that is not positive, and the two sums that the
/// batch norm's own gradient needs are gathered on the way: Σ dx and Σ dx·(x - mean)·inv_std per channel, of the masked dx.
struct NormGradient {
  Tensor x;                           ///< what was normalised; shape and dtype of dx
  Tensor mean, inv_std, gamma, beta;  ///< [C], fp32 (fp64 for fp64)
  Tensor sum_dy, sum_dy_xhat;         ///< [C], written
  explicit operator bool() const { return static_cast<bool>(x); }
};

/// y[N,P,Q,O] = x[N,H,W,C] * weight[O,kH,kW,C/groups] (+ bias[O], optional).
struct Conv2dForward {
  Tensor x, weight, bias, y;
  Window2d window;
  NormOnLoad norm = {};              ///< optional
  Tensor sum = {}, square_sum = {};  ///< [O] fp32 (fp64 for fp64), optional, both or none: Σ y and Σ y² per channel; y rounded or not
};
/// dx from dy and the weight.
struct Conv2dBackwardData {
  Tensor dy, weight, dx;
  Window2d window;
  NormGradient norm = {};  ///< optional
};
/// dweight (and dbias, optional) from x and dy.
struct Conv2dBackwardWeights {
  Tensor x, dy, dweight, dbias;
  Window2d window;
  bool accumulate = false;
  NormOnLoad norm = {};  ///< optional: as in the forward pass
  /// Optional, not with `accumulate`, with x's low precision: a backend whose engine rounds the gradient to that precision anyway may leave
  /// it here instead of widening it into dweight. It then sets *in_low, which must be given, and dweight keeps what it held.
  Tensor dweight_low = {};
  bool* in_low = nullptr;
};

/// c[M,N] = op(a) · op(b) (+ bias[N], optional, added to each row), then ReLU if `relu` (not with `accumulate`; NaN stays NaN); op
/// transposes where asked. For low-precision a and b, c may be fp32 or of their dtype.
struct Matmul {
  Tensor a, b, bias, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  bool relu = false;
};

/// y[C] = Σ over rows of x[R,C].
struct SumRows {
  Tensor x, y;
  bool accumulate = false;
};

enum class Activation : std::uint8_t { kNone, kRelu, kGelu, kSilu };

/// y = activation(x). y may be x for ReLU. GELU is the exact one, x·Φ(x).
struct ActivationForward {
  Activation kind = Activation::kRelu;
  Tensor x, y;
};
/// dx = dy · activation'(x). For ReLU `x` may be the forward's output as well. dx may be dy.
struct ActivationBackward {
  Activation kind = Activation::kRelu;
  Tensor x, dy, dx;
};

/// Batch normalisation of x[R,C] or x[N,H,W,C] over all but the last dimension, then + residual (optional), then ReLU
/// if `relu`. In training mean and 1/sqrt(variance + eps) of the batch (biased variance) are saved for the backward pass, and the
/// running statistics move by `momentum` towards the batch's mean and unbiased variance. gamma and beta are optional.
struct BatchNormForward {
  Tensor x, residual, gamma, beta, y;
  Tensor running_mean, running_var;  ///< updated in training, read in inference
  Tensor saved_mean, saved_inv_std;  ///< [C]; written in training, and in inference where given
  double eps = 1e-5, momentum = 0.1;
  bool training = true, relu = false;
  Tensor batches_tracked;  ///< int64 scalar, optional: one more in training
};
/// The gradient of y may come as the sum of one or two terms (dy, dy2 optional). With `relu`, y is the forward's output and the
/// gradient is masked by y > 0 first. `dresidual` (optional) receives that masked sum, and may be dy or dy2 where the
/// caller owns it. dx may be dy, dy2, x or a y that is not needed any more (each element is read before it is written): that saves a
/// tensor's worth of traffic; but dx and dresidual are two tensors. With training = false the saved statistics are constants
/// (inference-mode normalisation).
struct BatchNormBackward {
  Tensor x, y, dy, dy2, gamma;
  Tensor saved_mean, saved_inv_std;
  Tensor dx, dresidual, dgamma, dbeta;
  bool relu = false, accumulate = false;  ///< accumulate: for dgamma and dbeta
  bool training = true;
  /// Optional, and only where the forward pass added no residual: with beta (and gamma, if any) the mask y > 0 is found from x
  /// again, and y may be empty. Faster: one tensor less is read.
  Tensor beta;
};

// A batch norm in steps, for convolutions that carry out parts of it (Conv2dForward::norm and sum, Conv2dBackwardData::norm): one pass over
// the data for each step that no convolution takes over. Per-channel tensors are [C] in fp32 (fp64 for fp64); data as in BatchNormForward.

/// sum[c] = Σ x, square_sum[c] = Σ x², over all but the last dimension.
struct ChannelSums {
  Tensor x, sum, square_sum;
};
/// From the sums of `count` values per channel to what the batch norm is: mean, 1/sqrt(biased variance + eps), and scale = gamma·inv_std
/// and shift = beta - mean·scale. Moves the running statistics and counts, as BatchNormForward does. Computed in fp64.
struct BatchNormFinish {
  Tensor sum, square_sum, gamma, beta;                ///< gamma and beta optional
  Tensor running_mean, running_var, batches_tracked;  ///< optional
  Tensor saved_mean, saved_inv_std, scale, shift;     ///< written
  std::int64_t count = 0;
  double eps = 1e-5, momentum = 0.1;
};
/// y = scale[c]·x + shift[c] + r, r = residual, or residual_scale[c]·residual + residual_shift[c] where those are given, or nothing;
/// then ReLU if `relu`. y may be x or residual.
struct ScaleShift {
  Tensor x, scale, shift, residual, residual_scale, residual_shift, y;
  bool relu = false;
};
/// masked = dy where gamma·(x - mean)·inv_std + beta > 0, else 0 (masked may be dy), and its sums as in NormGradient.
struct BatchNormBackwardSums {
  Tensor x, dy, saved_mean, saved_inv_std, gamma, beta, masked, sum_dy, sum_dy_xhat;
};
/// The last step: dx = gamma·inv_std·(dy - sum_dy/n - x̂·sum_dy_xhat/n), n = elements / C, dy being masked already; dgamma = sum_dy_xhat
/// and dbeta = sum_dy, added where `accumulate`. dx may be dy or x.
struct BatchNormBackwardApply {
  Tensor x, dy, gamma, saved_mean, saved_inv_std, sum_dy, sum_dy_xhat, dx, dgamma, dbeta;
  bool accumulate = false;
};

/// Layer normalisation of x[R,C] over C; gamma[C], beta[C]. mean and inv_std are [R].
struct LayerNormForward {
  Tensor x, gamma, beta, y, saved_mean, saved_inv_std;
  double eps = 1e-5;
};
struct LayerNormBackward {
  Tensor x, dy, gamma, saved_mean, saved_inv_std, dx, dgamma, dbeta;
  bool accumulate = false;
};

enum class Pooling : std::uint8_t { kMax, kAverage };

/// y[N,P,Q,C] from x[N,H,W,C]. Max pooling writes `index` (int32, shape of y, optional in inference): the flat h·W + w of the first
/// maximum; padding counts as -infinity. Average pooling divides by the window's whole size, padding included, as PyTorch does by default.
struct Pool2dForward {
  Pooling kind = Pooling::kMax;
  Tensor x, y, index;
  Window2d window;
};
struct Pool2dBackward {
  Pooling kind = Pooling::kMax;
  Tensor dy, index, dx;
  Window2d window;
};
/// y[N,C] = mean over H, W of x[N,H,W,C].
struct GlobalAvgPoolForward {
  Tensor x, y;
};
struct GlobalAvgPoolBackward {
  Tensor dy, dx;
};

/// y = a + b. y may be a or b.
struct Add {
  Tensor a, b, y;
};

/// Option-A shortcut: y[N,ceil(H/s),ceil(W/s),O] takes every s-th pixel of x[N,H,W,C]; channels before `pad_before` and from
/// pad_before + C on are zero.
struct SubsamplePadForward {
  Tensor x, y;
  std::int64_t stride = 2, pad_before = 0;
};
struct SubsamplePadBackward {
  Tensor dy, dx;
  std::int64_t stride = 2, pad_before = 0;
};

/// y[N, C·H·W] in PyTorch's order C, H, W from x[N,H,W,C]; `inverse` goes back.
struct FlattenChannelsFirst {
  Tensor x, y;
  bool inverse = false;
};

/// y = x · mask / (1 - p); element i is kept where the Philox number of (key, counter, i) is >= p. The backward pass calls it
/// again on the gradient with the same key and counter, so no mask is stored. y may be x.
struct Dropout {
  Tensor x, y;
  double p = 0.5;
  std::uint64_t key = 0;
  std::uint64_t counter = 0;  ///< distinct per layer use, step, micro-batch and rank
};

/// Softmax cross entropy with label smoothing ε: target = (1-ε)·onehot + ε/C. logits [N,C], labels int32 [N].
/// `loss` (a scalar of the logits' dtype, or fp32 for low precision; on the device) receives the SUM over samples times `scale`;
/// dlogits (optional) receives the gradient of that loss times `gradient_scale` (fp16's loss scale).
struct SoftmaxCrossEntropy {
  Tensor logits, labels, loss, dlogits;
  double label_smoothing = 0.0, scale = 1.0, gradient_scale = 1.0;
};
/// Adds into totals (fp64 [4], on the device): sum of the plain losses, samples whose label's logit is the largest (first index on
/// ties), samples whose label is among the 5 largest, samples counted.
struct ClassificationMetrics {
  Tensor logits, labels, totals;
};

/// y = cast of x to y's dtype.
struct Cast {
  Tensor x, y;
  /// Optional, for x in low precision and y in fp32: uint8, one entry per 32 elements. Only where it has a bit of `mask` y is written.
  Tensor blocks = {};
  std::uint8_t mask = 0;
};
inline constexpr std::int64_t kCastBlock = 32;
/// Throws Error(kInternal) where the tensors do not fit each other: what every backend's cast begins with.
void check_cast(const Cast& args);

/// Crop, flip and normalise uint8 images: x[B,H,W,C] → y[B,H,W,C] floating. The image is padded by `crop_padding` zeros (before
/// normalising), the window at (offset_y, offset_x) is taken, mirrored where flip is set, then (v/255 - mean)/std per channel.
/// params: int32 [B,3] rows of (offset_y, offset_x, flip), on the device; empty means no augmentation.
struct AugmentImages {
  Tensor x, params, y;
  std::int64_t crop_padding = 0;
  std::array<double, 4> mean{}, std{};  ///< per channel, at most 4
};

/// out = Σ_k weight_k · in_k, at most 8 terms; `accumulate` adds to out.
struct WeightedSum {
  std::array<Tensor, 8> in;
  std::array<double, 8> weight{};
  int terms = 0;
  Tensor out;
  bool accumulate = false;
};

/// totals (fp64, on the device) [i] += Σ (x - y)², y optional: the squared norm. Summed in fp64, in an order that depends on
/// the number of elements alone.
struct SquaredDistance {
  Tensor x, y, totals;
  std::int64_t index = 0;
};

/// From squared norms of gradients to what an update needs, on the device, without a wait. norm = scale · sqrt(Σ totals[first …
/// first + count - 1]); control (fp64 [2]) becomes {clip factor, skip}: the factor is min(1, clip / (norm + 1e-6)), or 1 where clip is 0
/// or norm is NaN; skip is 1 where check_finite is set and the norm is not finite, otherwise 0.
struct GradientControl {
  Tensor totals;  ///< fp64
  std::int64_t first = 0, count = 0;
  double scale = 1.0, clip = 0.0;
  bool check_finite = false;
  Tensor control;
};

class OptimizerRule;
class PeerMemory;
struct UpdateArgs;

/// What changes from step to step in work that is otherwise the same.
struct StepValues {
  std::int64_t pass = 0;  ///< t: updates done before this step
  double lr = 0.0;
  std::int64_t step = 1;              ///< the optimizer's
  double loss_scale = 1.0;            ///< fp16's, a power of two
  std::uint64_t dropout_counter = 0;  ///< the pass's at its start
};

/// Captured work, to be done again and again: on kCompute, after all that it has been told before. It reads and writes the memory that
/// the capture named: the owner keeps all tensors from outside it alive. Not to outlive its backend.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  /// Without a wait or an allocation. `values` take the place of those that the capture began with.
  virtual void launch(const StepValues& values) = 0;
};

/// What a device can do. Calls are issued to the current stream of the calling thread's StreamScope and may return before the work is
/// done; synchronize() waits. Implementations: kernels/cpu, kernels/cuda, and MetaBackend for shapes alone. Not thread-safe
/// but for allocate() and the release of storages: one thread issues work.
class Backend {
 public:
  virtual ~Backend() = default;
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual DeviceType device() const = 0;
  virtual std::string description() const = 0;  ///< e.g. the processor's name and instruction set

  // Memory. Throws Error(kMemory) that names needed and available bytes.
  virtual std::shared_ptr<Storage> allocate(std::size_t bytes) = 0;
  virtual MemoryStats memory_stats() const = 0;
  virtual void copy(const Tensor& from, const Tensor& to) = 0;  ///< same dtype and element count, this device
  virtual void copy_from_host(const void* from, const Tensor& to) = 0;
  virtual void copy_to_host(const Tensor& from, void* to) = 0;  ///< waits
  /// Like copy_to_host without the wait: `to` holds the numbers after synchronize(event), until when it must live. Small tensors only (64
  /// KiB at most).
  virtual Event copy_to_host_later(const Tensor& from, void* to) = 0;
  virtual void fill(const Tensor& x, double value) = 0;
  /// Host memory that a device copies from and to without the host's help (page-locked); Error(kMemory) where there is none.
  virtual std::shared_ptr<std::byte> allocate_host(std::size_t bytes);
  /// Copies between the device and memory of allocate_host(), on the current stream: they return at once, and the host must keep its hands
  /// off until an event recorded afterwards is done.
  virtual void copy_to_pinned(const Tensor& from, std::byte* to) { copy_to_host(from, to); }
  virtual void copy_from_pinned(const std::byte* from, const Tensor& to) { copy_from_host(from, to); }

  // Streams and events.
  virtual void set_stream(StreamKind stream) = 0;
  virtual StreamKind stream() const = 0;
  virtual Event record() = 0;                 ///< marks the current stream's work so far
  virtual void wait(Event event) = 0;         ///< the current stream waits; the host does not
  virtual void synchronize(Event event) = 0;  ///< the host waits
  virtual bool done(Event) { return true; }   ///< whether what the event marks is done; may be asked from any thread
  /// The current stream as the device's libraries know it (a cudaStream_t); null where work has been done when a call returns. Throws
  /// Error(kInternal) in a capture that an earlier call has spoilt: a library could only say that something went wrong.
  virtual void* native_stream() const { return nullptr; }
  virtual void synchronize() = 0;  ///< the host waits for everything

  /// From here to end_capture() work is kept, not done; false where this backend has no graphs. Called on kCompute; other streams take part
  /// once they wait for an event recorded within, and kCompute must wait for all that they did. Operations are called with `values` of this
  /// step (an update with its lr and step; gradient_scale, loss and gradient_control with factors of its loss_scale; dropout with counters
  /// from its dropout_counter on), and follow the values of each launch later. The host neither waits nor copies; the rules of updates live
  /// as long as the graph. Each launch comes after all that kCompute, kUpdate and kCommunication have been told until then, and after what
  /// kUpload has where the capture waits for an event of it from before.
  virtual bool begin_capture(const StepValues& values) { return (void)values, false; }
  /// Throws Error(kInternal) where the capture failed; then, too, it is over.
  virtual std::unique_ptr<DeviceGraph> end_capture() { return nullptr; }
  /// Ends a capture in whose midst an error was thrown. Nothing of it has been done.
  virtual void abandon_capture() noexcept {}
  virtual bool capturing() const { return false; }

  /// A clock of the device's own, for --trace; null where work has been done when a call returns.
  virtual std::unique_ptr<DeviceClock> device_clock() { return nullptr; }
  /// Memory that ranks of one host share (core/peer_memory.h); null where there is none.
  virtual PeerMemory* peer_memory() { return nullptr; }

  /// Whether convolutions on tensors of `dtype` carry out parts of batch norms faster than a batch norm of its own would run.
  virtual bool fuses_batch_norms(DType dtype) const { return (void)dtype, false; }
  /// Whether gradients of weights may come out in `dtype`, a low precision, so that memory for them is worth having
  /// (Conv2dBackwardWeights::dweight_low) and updates read them there (UpdateArgs::gradient_low).
  virtual bool low_precision_gradients(DType dtype) const { return (void)dtype, false; }

  // Operations.
  virtual void conv2d_forward(const Conv2dForward& args) = 0;
  virtual void conv2d_backward_data(const Conv2dBackwardData& args) = 0;
  virtual void conv2d_backward_weights(const Conv2dBackwardWeights& args) = 0;
  virtual void matmul(const Matmul& args) = 0;
  virtual void sum_rows(const SumRows& args) = 0;
  virtual void activation_forward(const ActivationForward& args) = 0;
  virtual void activation_backward(const ActivationBackward& args) = 0;
  virtual void batch_norm_forward(const BatchNormForward& args) = 0;
  virtual void batch_norm_backward(const BatchNormBackward& args) = 0;
  virtual void channel_sums(const ChannelSums& args) = 0;
  virtual void batch_norm_finish(const BatchNormFinish& args) = 0;
  virtual void scale_shift(const ScaleShift& args) = 0;
  virtual void batch_norm_backward_sums(const BatchNormBackwardSums& args) = 0;
  virtual void batch_norm_backward_apply(const BatchNormBackwardApply& args) = 0;
  virtual void layer_norm_forward(const LayerNormForward& args) = 0;
  virtual void layer_norm_backward(const LayerNormBackward& args) = 0;
  virtual void pool2d_forward(const Pool2dForward& args) = 0;
  virtual void pool2d_backward(const Pool2dBackward& args) = 0;
  virtual void global_avg_pool_forward(const GlobalAvgPoolForward& args) = 0;
  virtual void global_avg_pool_backward(const GlobalAvgPoolBackward& args) = 0;
  virtual void add(const Add& args) = 0;
  virtual void subsample_pad_forward(const SubsamplePadForward& args) = 0;
  virtual void subsample_pad_backward(const SubsamplePadBackward& args) = 0;
  virtual void flatten_channels_first(const FlattenChannelsFirst& args) = 0;
  virtual void dropout(const Dropout& args) = 0;
  virtual void softmax_cross_entropy(const SoftmaxCrossEntropy& args) = 0;
  virtual void classification_metrics(const ClassificationMetrics& args) = 0;
  virtual void cast(const Cast& args) = 0;
  virtual void augment_images(const AugmentImages& args) = 0;
  virtual void weighted_sum(const WeightedSum& args) = 0;
  virtual void squared_distance(const SquaredDistance& args) = 0;
  virtual void gradient_control(const GradientControl& args) = 0;
  /// The fused update of one bucket; see kernels/optimizer.h.
  virtual void update(const OptimizerRule& rule, const UpdateArgs& args) = 0;
};

/// Issues the enclosed calls to another stream.
class StreamScope {
 public:
  StreamScope(Backend& backend, StreamKind stream) : backend_(backend), before_(backend.stream()) { backend.set_stream(stream); }
  ~StreamScope() { backend_.set_stream(before_); }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Backend& backend_;
  StreamKind before_;
};

/// The backend of shapes alone: allocations hold no memory (but are counted, so that a traced pass tells the memory a
/// real one takes), operations do nothing, copies to the host give zeros.
Backend& meta_backend();
/// A meta backend of one's own, for counting.
std::unique_ptr<Backend> make_meta_backend();

}  // namespace starling
