#pragma once

#include "layers/layer.h"

namespace starling {

/// x · weightᵀ + bias: {…, I} → {…, O}, every row by itself. Tensors: weight (O×I), bias (O), drawn
/// from U(±1/sqrt(I)), PyTorch's default; kSmallNormal draws weights from N(0, 0.01²), kNormal002
/// from N(0, 0.02²).
class Linear : public Layer {
 public:
  enum class WeightInit : std::uint8_t { kDefault, kKaimingNormal, kSmallNormal, kNormal002 };
  explicit Linear(std::int64_t out_features, bool bias = true,
                  WeightInit init = WeightInit::kDefault, bool zero_bias = false)
      : out_features_(out_features), has_bias_(bias), init_(init), zero_bias_(zero_bias) {}

  /// Does forward(), then ReLU, in one operation.
  Variable forward_relu(const Variable& x, Pass& pass);

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  std::int64_t out_features_;
  bool has_bias_;
  WeightInit init_;
  bool zero_bias_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

}  // namespace starling
