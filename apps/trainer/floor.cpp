#include "apps/trainer/floor.h"

#include <algorithm>
#include <memory>
#include <utility>

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

/// Notes each operation's work. No tensor is held, since a second handle would change what the layers overwrite in place.
class CountingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::vector<OperationWork> take() { return std::move(work_); }

  void copy(const Tensor& from, const Tensor& to) override { note("copy", bytes_of(from, to)); }
  void fill(const Tensor& x, double) override { note("fill", bytes_of(x)); }
  void conv2d_forward(const Conv2dForward& args) override {
    note("conv2d_forward",
         bytes_of(args.x, args.weight, args.bias, args.y, args.norm.scale, args.norm.shift) + bytes_of(args.sum, args.square_sum),
         window_flops(args.y, args.weight));
  }
  void conv2d_backward_data(const Conv2dBackwardData& args) override {
    const NormGradient& norm = args.norm;
    note("conv2d_backward_data",
         bytes_of(args.dy, args.weight, args.dx) +
             bytes_of(norm.x, norm.mean, norm.inv_std, norm.gamma, norm.beta, norm.sum_dy, norm.sum_dy_xhat),
         window_flops(args.dy, args.weight));
  }
  void conv2d_backward_weights(const Conv2dBackwardWeights& args) override {
    note("conv2d_backward_weights",
         bytes_of(args.x, args.dy, args.norm.scale, args.norm.shift) + output_bytes(args.accumulate, args.dweight, args.dbias),
         window_flops(args.dy, args.dweight));
  }
  void matmul(const Matmul& args) override {
    const double depth = static_cast<double>(args.a.elements()) / static_cast<double>(std::max<std::int64_t>(1, args.c.shape()[0]));
    note("matmul", bytes_of(args.a, args.b, args.bias) + output_bytes(args.accumulate, args.c),
         2.0 * depth * static_cast<double>(args.c.elements()));
  }
  void sum_rows(const SumRows& args) override { note("sum_rows", bytes_of(args.x) + output_bytes(args.accumulate, args.y)); }
  void activation_forward(const ActivationForward& args) override { note("activation_forward", bytes_of(args.x, args.y)); }
  void activation_backward(const ActivationBackward& args) override { note("activation_backward", bytes_of(args.x, args.dy, args.dx)); }
  void batch_norm_forward(const BatchNormForward& args) override;
  void batch_norm_backward(const BatchNormBackward& args) override;
  void channel_sums(const ChannelSums& args) override { note("channel_sums", bytes_of(args.x, args.sum, args.square_sum)); }
  void batch_norm_finish(const BatchNormFinish& args) override {
    note("batch_norm_finish",
         bytes_of(args.sum, args.square_sum, args.gamma, args.beta, args.saved_mean, args.saved_inv_std, args.scale, args.shift) +
             2.0 * bytes_of(args.running_mean, args.running_var));
  }
  void scale_shift(const ScaleShift& args) override {
    note("scale_shift", bytes_of(args.x, args.scale, args.shift, args.residual, args.residual_scale, args.residual_shift, args.y));
  }
  void batch_norm_backward_sums(const BatchNormBackwardSums& args) override {
    note("batch_norm_backward_sums", bytes_of(args.x, args.dy, args.masked, args.saved_mean, args.saved_inv_std, args.gamma, args.beta) +
                                         bytes_of(args.sum_dy, args.sum_dy_xhat));
  }
  void batch_norm_backward_apply(const BatchNormBackwardApply& args) override {
    note("batch_norm_backward_apply",
         bytes_of(args.x, args.dy, args.dx, args.gamma, args.saved_mean, args.saved_inv_std, args.sum_dy, args.sum_dy_xhat) +
             output_bytes(args.accumulate, args.dgamma, args.dbeta));
  }
  void layer_norm_forward(const LayerNormForward& args) override {
    note("layer_norm_forward", bytes_of(args.x, args.gamma, args.beta, args.y, args.saved_mean, args.saved_inv_std));
  }
  void layer_norm_backward(const LayerNormBackward& args) override {
    note("layer_norm_backward", bytes_of(args.x, args.dy, args.gamma, args.saved_mean, args.saved_inv_std, args.dx) +
                                    output_bytes(args.accumulate, args.dgamma, args.dbeta));
  }
  void pool2d_forward(const Pool2dForward& args) override { note("pool2d_forward", bytes_of(args.x, args.y, args.index)); }
  void pool2d_backward(const Pool2dBackward& args) override { note("pool2d_backward", bytes_of(args.dy, args.index, args.dx)); }
  void global_avg_pool_forward(const GlobalAvgPoolForward& args) override { note("global_avg_pool_forward", bytes_of(args.x, args.y)); }
  void global_avg_pool_backward(const GlobalAvgPoolBackward& args) override {
    note("global_avg_pool_backward", bytes_of(args.dy, args.dx));
  }
  void add(const Add& args) override { note("add", bytes_of(args.a, args.b, args.y)); }
  void subsample_pad_forward(const SubsamplePadForward& args) override {
    note("subsample_pad_forward", taken(args.y, args.x) + bytes_of(args.y));
  }
  void subsample_pad_backward(const SubsamplePadBackward& args) override {
    note("subsample_pad_backward", taken(args.dy, args.dx) + bytes_of(args.dx));
  }
  void flatten_channels_first(const FlattenChannelsFirst& args) override { note("flatten_channels_first", bytes_of(args.x, args.y)); }
  void dropout(const Dropout& args) override { note("dropout", bytes_of(args.x, args.y)); }
  void softmax_cross_entropy(const SoftmaxCrossEntropy& args) override {
    note("softmax_cross_entropy", bytes_of(args.logits, args.labels, args.loss, args.dlogits));
  }
  void cast(const Cast& args) override { note("cast", bytes_of(args.x, args.y)); }
  void augment_images(const AugmentImages& args) override { note("augment_images", bytes_of(args.x, args.params, args.y)); }
  void weighted_sum(const WeightedSum& args) override {
    double bytes = output_bytes(args.accumulate, args.out);
    for (int i = 0; i < args.terms; ++i) bytes += bytes_of(args.in[static_cast<std::size_t>(i)]);
    note("weighted_sum", bytes);
  }
  void squared_distance(const SquaredDistance& args) override { note("squared_distance", bytes_of(args.x, args.y)); }

 private:
  /// Of `whole`, what has a counterpart in `part`'s pixels and in whole's channels.
  static double taken(const Tensor& part, const Tensor& whole) {
    return bytes_of(part) * static_cast<double>(whole.shape().back()) / static_cast<double>(part.shape().back());
  }
  void note(const char* name, double bytes, double flops = 0.0) { work_.push_back({name, bytes, flops}); }

  std::vector<OperationWork> work_;
};

void CountingBackend::batch_norm_forward(const BatchNormForward& args) {
  const double channels = bytes_of(args.gamma, args.beta, args.saved_mean, args.saved_inv_std);
  note("batch_norm_forward", (args.training ? 2.0 : 1.0) * bytes_of(args.x) + bytes_of(args.residual, args.y) + channels);
}

void CountingBackend::batch_norm_backward(const BatchNormBackward& args) {
  const double incoming = bytes_of(args.dy, args.dy2) + (args.relu ? bytes_of(args.y) : 0.0);
  // The second pass may read the masked sum that the first one writes.
  const double again = args.dresidual ? std::min(incoming, bytes_of(args.dresidual)) : incoming;
  const double x = bytes_of(args.x);
  double bytes = incoming + x + bytes_of(args.dx, args.dresidual, args.gamma, args.beta, args.saved_mean, args.saved_inv_std) +
                 output_bytes(args.accumulate, args.dgamma, args.dbeta);
  if (args.training) bytes += again + x;
  note("batch_norm_backward", bytes);
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

double low_gradient_elements(const Model& model, DType compute) {
  double count = 0.0;
  if (!is_low_precision(compute)) return count;
  for (const Parameter* parameter : model.parameters()) {
    const bool convolution = parameter->product && parameter->layout == TensorLayout::kConvWeight;
    if (convolution && parameter->trainable) count += static_cast<double>(parameter->shape.elements());
  }
  return count;
}

OperationWork count_update(const OptimizerRule& rule, double parameters, double received, DType dtype, DType compute,
                           double low_gradients) {
  const auto element = static_cast<double>(size_of(dtype));
  double bytes = static_cast<double>(rule.bytes_per_parameter(static_cast<int>(size_of(dtype)))) + received * element;
  if (is_low_precision(compute)) bytes += static_cast<double>(size_of(compute));
  return {"update", parameters * bytes - low_gradients * (element - static_cast<double>(size_of(compute))), 0.0};
}

Floor floor_of(const std::vector<OperationWork>& work, double flops_per_second, double bytes_per_second) {
  Floor floor;
  for (const OperationWork& operation : work) {
    floor.bytes += operation.bytes;
    floor.flops += operation.flops;
    floor.seconds += std::max(operation.bytes / bytes_per_second, operation.flops / flops_per_second);
  }
  floor.memory_seconds = floor.bytes / bytes_per_second;
  floor.arithmetic_seconds = floor.flops / flops_per_second;
  return floor;
}

}  // namespace starling
