#include "apps/trainer/floor.h"

#include <algorithm>
#include <map>
#include <memory>

#include "core/autograd.h"
#include "core/forwarding_backend.h"
#include "layers/functions.h"

namespace starling {

namespace {

double bytes_of(const Tensor& tensor) { return tensor ? static_cast<double>(tensor.bytes()) : 0.0; }
template <class... Tensors>
double bytes_of(const Tensor& first, const Tensors&... rest) {
  return bytes_of(first) + bytes_of(rest...);
}

/// Bytes of an output: written, and read before where it is added to.
template <class... Tensors>
double output_bytes(bool accumulate, const Tensors&... tensors) {
  return (accumulate ? 2.0 : 1.0) * bytes_of(tensors...);
}

double window_flops(const Tensor& output, const Tensor& weight) {
  const std::int64_t products = weight.elements() / weight.shape()[0];  // that one output sums
  return 2.0 * static_cast<double>(output.elements()) * static_cast<double>(products);
}

/// Notes each operation's work. Tensors are told apart by their storage; none is held, since a second handle would change what the layers
/// overwrite in place.
class CountingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::vector<OperationWork> take();

  void copy(const Tensor& from, const Tensor& to) override { note("copy", bytes_of(from, to), to); }
  void fill(const Tensor& x, double) override { note("fill", bytes_of(x), x); }
  void conv2d_forward(const Conv2dForward& args) override {
    consume(args.x, Reader::kConvolution);
    note("conv2d_forward",
         bytes_of(args.x, args.weight, args.bias, args.y, args.norm.scale, args.norm.shift) + bytes_of(args.sum, args.square_sum), args.y,
         window_flops(args.y, args.weight));
    from_convolution_[args.y.storage().get()] = true;
  }
  void conv2d_backward_data(const Conv2dBackwardData& args) override {
    const NormGradient& norm = args.norm;
    note("conv2d_backward_data",
         bytes_of(args.dy, args.weight, args.dx) +
             bytes_of(norm.x, norm.mean, norm.inv_std, norm.gamma, norm.beta, norm.sum_dy, norm.sum_dy_xhat),
         args.dx, window_flops(args.dy, args.weight));
  }
  void conv2d_backward_weights(const Conv2dBackwardWeights& args) override {
    note("conv2d_backward_weights",
         bytes_of(args.x, args.dy, args.norm.scale, args.norm.shift) + output_bytes(args.accumulate, args.dweight, args.dbias),
         args.dweight, window_flops(args.dy, args.dweight));
  }
  void matmul(const Matmul& args) override {
    consume(args.a);
    const double depth = static_cast<double>(args.a.elements()) / static_cast<double>(std::max<std::int64_t>(1, args.c.shape()[0]));
    note("matmul", bytes_of(args.a, args.b, args.bias) + output_bytes(args.accumulate, args.c), args.c,
         2.0 * depth * static_cast<double>(args.c.elements()));
  }
  void sum_rows(const SumRows& args) override { note("sum_rows", bytes_of(args.x) + output_bytes(args.accumulate, args.y), args.y); }
  void activation_forward(const ActivationForward& args) override {
    consume(args.x);
    note("activation_forward", bytes_of(args.x, args.y), args.y);
  }
  void activation_backward(const ActivationBackward& args) override {
    note("activation_backward", bytes_of(args.x, args.dy, args.dx), args.dx);
  }
  void batch_norm_forward(const BatchNormForward& args) override;
  void batch_norm_backward(const BatchNormBackward& args) override;
  void channel_sums(const ChannelSums& args) override { note("channel_sums", bytes_of(args.x, args.sum, args.square_sum), args.sum); }
  void batch_norm_finish(const BatchNormFinish& args) override {
    note("batch_norm_finish",
         bytes_of(args.sum, args.square_sum, args.gamma, args.beta, args.saved_mean, args.saved_inv_std, args.scale, args.shift) +
             2.0 * bytes_of(args.running_mean, args.running_var),
         args.scale);
  }
  void scale_shift(const ScaleShift& args) override {
    consume(args.x);
    if (args.residual) consume(args.residual, Reader::kSum);
    note("scale_shift", bytes_of(args.x, args.scale, args.shift, args.residual, args.residual_scale, args.residual_shift, args.y), args.y);
  }
  void batch_norm_backward_sums(const BatchNormBackwardSums& args) override {
    note("batch_norm_backward_sums",
         bytes_of(args.x, args.dy, args.masked, args.saved_mean, args.saved_inv_std, args.gamma, args.beta) +
             bytes_of(args.sum_dy, args.sum_dy_xhat),
         args.masked);
  }
  void batch_norm_backward_apply(const BatchNormBackwardApply& args) override {
    note("batch_norm_backward_apply",
         bytes_of(args.x, args.dy, args.dx, args.gamma, args.saved_mean, args.saved_inv_std, args.sum_dy, args.sum_dy_xhat) +
             output_bytes(args.accumulate, args.dgamma, args.dbeta),
         args.dx);
  }
  void layer_norm_forward(const LayerNormForward& args) override {
    consume(args.x);
    note("layer_norm_forward", bytes_of(args.x, args.gamma, args.beta, args.y, args.saved_mean, args.saved_inv_std), args.y);
  }
  void layer_norm_backward(const LayerNormBackward& args) override {
    note("layer_norm_backward",
         bytes_of(args.x, args.dy, args.gamma, args.saved_mean, args.saved_inv_std, args.dx) +
             output_bytes(args.accumulate, args.dgamma, args.dbeta),
         args.dx);
  }
  void pool2d_forward(const Pool2dForward& args) override {
    consume(args.x);
    note("pool2d_forward", bytes_of(args.x, args.y, args.index), args.y);
  }
  void pool2d_backward(const Pool2dBackward& args) override { note("pool2d_backward", bytes_of(args.dy, args.index, args.dx), args.dx); }
  void global_avg_pool_forward(const GlobalAvgPoolForward& args) override {
    consume(args.x);
    note("global_avg_pool_forward", bytes_of(args.x, args.y), args.y);
  }
  void global_avg_pool_backward(const GlobalAvgPoolBackward& args) override {
    note("global_avg_pool_backward", bytes_of(args.dy, args.dx), args.dx);
  }
  void add(const Add& args) override {
    consume(args.a);
    consume(args.b);
    note("add", bytes_of(args.a, args.b, args.y), args.y);
  }
  void subsample_pad_forward(const SubsamplePadForward& args) override {
    consume(args.x);
    note("subsample_pad_forward", taken(args.y, args.x) + bytes_of(args.y), args.y);
  }
  void subsample_pad_backward(const SubsamplePadBackward& args) override {
    note("subsample_pad_backward", taken(args.dy, args.dx) + bytes_of(args.dx), args.dx);
  }
  void flatten_channels_first(const FlattenChannelsFirst& args) override {
    consume(args.x);
    note("flatten_channels_first", bytes_of(args.x, args.y), args.y);
  }
  void dropout(const Dropout& args) override {
    consume(args.x);
    note("dropout", bytes_of(args.x, args.y), args.y);
  }
  void softmax_cross_entropy(const SoftmaxCrossEntropy& args) override {
    note("softmax_cross_entropy", bytes_of(args.logits, args.labels, args.loss, args.dlogits), args.dlogits);
  }
  void cast(const Cast& args) override {
    consume(args.x);
    note("cast", bytes_of(args.x, args.y), args.y);
  }
  void augment_images(const AugmentImages& args) override { note("augment_images", bytes_of(args.x, args.params, args.y), args.y); }
  void weighted_sum(const WeightedSum& args) override {
    double bytes = output_bytes(args.accumulate, args.out);
    for (int i = 0; i < args.terms; ++i) bytes += bytes_of(args.in[static_cast<std::size_t>(i)]);
    note("weighted_sum", bytes, args.out);
  }
  void squared_distance(const SquaredDistance& args) override { note("squared_distance", bytes_of(args.x, args.y), {}); }

 private:
  enum class Reader { kConvolution, kSum, kOther };  // kSum: a batch norm that adds it
  /// A batch norm of the forward pass, until it is known who reads its output.
  struct Norm {
    const Storage* x = nullptr;
    std::size_t forward = 0, backward = 0;  ///< calls; 0 backward: none yet
    double bytes = 0.0;                     ///< of x
    bool after_convolution = false, relu = false, residual = false, convolutions_only = true, sums_only = true;
    int readers = 0;
  };

  /// Of `whole`, what has a counterpart in `part`'s pixels and in whole's channels.
  static double taken(const Tensor& part, const Tensor& whole) {
    return bytes_of(part) * static_cast<double>(whole.shape().back()) / static_cast<double>(part.shape().back());
  }
  void note(const char* name, double bytes, const Tensor& output, double flops = 0.0) {
    work_.push_back({name, bytes, bytes, flops});
    if (!output) return;
    from_convolution_.erase(output.storage().get());
    norm_of_output_.erase(output.storage().get());
  }
  void consume(const Tensor& x, Reader reader = Reader::kOther) {
    const auto place = norm_of_output_.find(x.storage().get());
    if (place == norm_of_output_.end()) return;
    Norm& norm = norms_[place->second];
    ++norm.readers;
    norm.convolutions_only &= reader == Reader::kConvolution;
    norm.sums_only &= reader == Reader::kSum;
  }

  std::vector<OperationWork> work_;
  std::vector<Norm> norms_;
  std::map<const Storage*, bool> from_convolution_;
  std::map<const Storage*, std::size_t> norm_of_output_;
};

void CountingBackend::batch_norm_forward(const BatchNormForward& args) {
  consume(args.x);
  if (args.residual) consume(args.residual, Reader::kSum);
  const double channels = bytes_of(args.gamma, args.beta, args.saved_mean, args.saved_inv_std);
  const bool after_convolution = from_convolution_.count(args.x.storage().get()) != 0;
  note("batch_norm_forward", (args.training ? 2.0 : 1.0) * bytes_of(args.x) + bytes_of(args.residual, args.y) + channels, args.y);
  if (!args.training) return;
  norm_of_output_[args.y.storage().get()] = norms_.size();
  norms_.push_back({.x = args.x.storage().get(),
                    .forward = work_.size() - 1,
                    .bytes = bytes_of(args.x),
                    .after_convolution = after_convolution,
                    .relu = args.relu,
                    .residual = static_cast<bool>(args.residual)});
}

void CountingBackend::batch_norm_backward(const BatchNormBackward& args) {
  const double incoming = bytes_of(args.dy, args.dy2) + (args.relu ? bytes_of(args.y) : 0.0);
  // The second pass may read the masked sum that the first one writes.
  const double again = args.dresidual ? std::min(incoming, bytes_of(args.dresidual)) : incoming;
  const double x = bytes_of(args.x);
  double bytes = incoming + x + bytes_of(args.dx, args.dresidual, args.gamma, args.beta, args.saved_mean, args.saved_inv_std) +
                 output_bytes(args.accumulate, args.dgamma, args.dbeta);
  if (args.training) bytes += again + x;
  for (auto norm = norms_.rbegin(); norm != norms_.rend(); ++norm) {
    if (norm->x == args.x.storage().get() && norm->backward == 0) {
      norm->backward = work_.size();
      break;
    }
  }
  note("batch_norm_backward", bytes, args.dx);
}

std::vector<OperationWork> CountingBackend::take() {
  for (const Norm& norm : norms_) {
    if (!norm.after_convolution) continue;
    OperationWork& forward = work_[norm.forward];
    forward.fused_bytes -= norm.bytes;  // the convolution gathers the statistics
    if (norm.residual || norm.readers == 0) continue;
    if (!norm.relu && norm.readers == 1 && norm.sums_only)
      forward.fused_bytes -= 2.0 * norm.bytes;  // a shortcut's: the sum scales it as it loads
    if (!norm.relu || !norm.convolutions_only) continue;
    forward.fused_bytes -= 2.0 * norm.bytes;  // nor is its output written: the convolutions after it read x instead
    // The data gradient's kernel masks and sums what it writes: it reads x for that, and one pass over dy and x is gone.
    if (norm.backward != 0) work_[norm.backward].fused_bytes -= norm.bytes;
  }
  return std::move(work_);
}

}  // namespace

double Ceilings::flops(DType compute, bool tf32) const {
  if (compute == DType::kFloat64) return fp64_flops;
  if (compute == DType::kFloat32) return tf32 ? tf32_flops : fp32_flops;
  return low_flops;
}

Ceilings h200_ceilings() { return {"H200", 4.3e12, 790e12, 67e12, 395e12, 67e12}; }

std::vector<OperationWork> count_pass(Model& model, std::int64_t batch, DType dtype, DType compute, bool defer_norms) {
  const auto meta = make_meta_backend();
  CountingBackend backend(*meta);
  model.allocate(backend, dtype, compute);
  {
    Tape tape(backend);
    Pass pass{.backend = backend, .tape = &tape, .training = true, .defer_norms = defer_norms};
    const DType images = is_low_precision(compute) ? compute : dtype;
    const Tensor labels(backend, Shape{batch}, DType::kInt32);
    Variable loss;
    {
      const Variable logits = model.forward(Variable(Tensor(backend, model.input_shape().with_batch(batch), images)), pass);
      loss = functions::cross_entropy(logits, labels, 0.0, 1.0, pass);
    }
    tape.backward(loss);
  }
  model.drop_memory();
  return backend.take();
}

OperationWork count_update(const OptimizerRule& rule, double parameters, double received, DType dtype, DType compute) {
  const auto element = static_cast<double>(size_of(dtype));
  double bytes = static_cast<double>(rule.bytes_per_parameter(static_cast<int>(size_of(dtype)))) + received * element;
  if (is_low_precision(compute)) bytes += static_cast<double>(size_of(compute));
  return {"update", parameters * bytes, parameters * bytes, 0.0};
}

Floor floor_of(const std::vector<OperationWork>& work, double flops_per_second, double bytes_per_second, bool fused) {
  Floor floor;
  for (const OperationWork& operation : work) {
    const double bytes = fused ? operation.fused_bytes : operation.bytes;
    floor.bytes += bytes;
    floor.flops += operation.flops;
    floor.seconds += std::max(bytes / bytes_per_second, operation.flops / flops_per_second);
  }
  floor.memory_seconds = floor.bytes / bytes_per_second;
  floor.arithmetic_seconds = floor.flops / flops_per_second;
  return floor;
}

}  // namespace starling
