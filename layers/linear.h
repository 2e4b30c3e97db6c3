#pragma once

#include <cstdint>
#include <optional>

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
  Parameter& weight() { return *weight_; }

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
};

}  // namespace starling
