#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/tensor.h"

namespace starling {

/// How a tensor's memory relates to the tensor that PyTorch and safetensors files know by its name.
enum class TensorLayout : std::uint8_t {
  kPlain,       ///< the same
  kConvWeight,  ///< O×kH×kW×I in memory, O×I×kH×kW outside
  kImageScale,  ///< C in memory, C×1×1 outside: one number for each channel of an image
  kTransposed,  ///< O×I in memory, I×O outside: Hugging Face's Conv1D
};

/// A distribution that initial values are drawn from.
struct Init {
  enum class Kind : std::uint8_t { kConstant, kUniform, kNormal } kind = Kind::kConstant;
  double a = 0.0;  ///< the constant, the lower bound, or the mean
  double b = 0.0;  ///< the upper bound, or the standard deviation

  static Init constant(double value) { return {Kind::kConstant, value, 0.0}; }
  static Init uniform(double bound) { return {Kind::kUniform, -bound, bound}; }
  static Init normal(double deviation) { return {Kind::kNormal, 0.0, deviation}; }
};

/// A trainable tensor of a model. Layers declare it (name, shape, init); the trainer gives it
/// memory: value and grad are views into flat buckets. `grad` is this pass's gradient once the pass
/// has reported the parameter complete.
struct Parameter {
  std::string name;  ///< PyTorch's, whole path: "layer1.0.conv1.weight"
  Shape shape;       ///< in memory
  TensorLayout layout = TensorLayout::kPlain;
  Init init;
  bool trainable = true;
  /// The files that hold it: those of the model; of the base alone, which adapters leave as it is
  /// (Linear::adapt()); or of the adapter, which a base does not have.
  enum class In : std::uint8_t { kModel, kBase, kAdapter } in = In::kModel;
  /// Of kBase, a matrix is in the format of activations. Others may be empty where there is `low`.
  Tensor value;
  Tensor grad;
  /// A bf16 or fp16 copy of value, kept by the update; empty where training has no low precision
  Tensor low;
  int index = -1;  ///< position among the model's parameters, in declaration order

  /// The numbers in the format of activations, as convolutions and matrix products take them.
  const Tensor& operand() const { return low ? low : value; }

  /// Weight decay applies to tensors of two or more dimensions unless the config says "all".
  bool is_weight() const { return shape.rank() >= 2; }
};

/// A tensor of a model that training does not differentiate: running statistics. Averaged for
/// evaluation.
struct ModelBuffer {
  std::string name;
  Shape shape;
  Init init;
  DType dtype = DType::kFloat32;  ///< kInt64 for counters, which are not averaged
  Tensor value;
};

}  // namespace starling
