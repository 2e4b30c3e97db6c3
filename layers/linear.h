#pragma once

#include <cstdint>
#include <optional>

#include "layers/functions.h"
#include "layers/layer.h"

namespace starling {

/// x · weightᵀ + bias: {…, I} → {…, O}, for each row. Tensors: weight (O×I), bias (O), initialised
/// from U(±1/sqrt(I)), PyTorch's default.
class Linear : public Layer {
 public:
  enum class WeightInit : std::uint8_t { kDefault, kKaimingNormal };
  explicit Linear(std::int64_t out_features, bool bias = true,
                  WeightInit init = WeightInit::kDefault, bool zero_bias = false)
      : out_features_(out_features), has_bias_(bias), init_(init), zero_bias_(zero_bias) {}
  /// Other initial values, or another layout of the weight in files.
  struct Given {
    Init weight;
    bool has_bias = true;
    Init bias = Init::constant(0.0);
    TensorLayout layout = TensorLayout::kPlain;
  };
  Linear(std::int64_t out_features, const Given& given)
      : out_features_(out_features), has_bias_(given.has_bias), given_(given) {}

  /// forward(), then ReLU, as one operation.
  Variable forward_relu(const Variable& x, Pass& pass);
  /// forward(), then GELU in its tanh form, as one operation.
  Variable forward_gelu(const Variable& x, Pass& pass);
  Parameter& weight() { return *weight_; }

  /// A term of low rank, added to the weight: (alpha / rank) · B · A · dropout(x), with tensors
  /// named as PEFT's: lora_A.weight (R×I, from U(±1/sqrt(I))) and lora_B.weight (O×R, zeros).
  struct Adapter {
    std::int64_t rank = 8;
    double alpha = 16.0;
    double dropout = 0.0;  ///< probability that a number of x becomes 0 in training
  };
  /// Once, after setup(); the model collects its parameters again (Model::collect()).
  void adapt(const Adapter& adapter);

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  std::int64_t out_features_;
  bool has_bias_;
  WeightInit init_ = WeightInit::kDefault;
  bool zero_bias_ = false;
  std::optional<Given> given_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
  functions::LowRank term_;  ///< of adapt()
  double dropout_ = 0.0;     ///< of adapt()
};

}  // namespace starling
