#pragma once

#include <array>

#include "core/operations/convolutions.h"
#include "layers/layer.h"

namespace starling {

struct Conv2dOptions {
  std::int64_t out_channels = 0;
  Window2d window;
  bool bias = true;
  /// Distribution that weights are drawn from; PyTorch's default (kaiming_uniform with a = sqrt(5))
  /// is U(±1/sqrt(fan_in)), biases too. kNormalFanIn: N(0, 1/fan_in); kNormal002: N(0, 0.02²).
  enum class WeightInit : std::uint8_t {
    kDefault,
    kKaimingNormalFanIn,
    kKaimingNormalFanOut,
    kNormalFanIn,
    kNormal002
  } init = WeightInit::kDefault;
  bool zero_bias = false;  ///< initialise biases with 0 instead
  /// Initialise the first filters, one per input channel, as the identity (torch.nn.init.dirac_)
  bool dirac = false;
};

/// 2-D convolution: {H, W, C} → {P, Q, out_channels}. Tensors: weight (O×kH×kW×C/groups), bias (O).
class Conv2d : public Layer {
 public:
  explicit Conv2d(const Conv2dOptions& options) : options_(options) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;
  void begin_values(const FirstSamples& samples) override;

 private:
  Conv2dOptions options_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

/// Transposed convolution: {H, W, C} → {P, Q, out_channels}. Tensors:
/// weight (C×kH×kW×out_channels/groups), bias.
class ConvTranspose2d : public Layer {
 public:
  ConvTranspose2d(const Conv2dOptions& options, const std::array<std::int64_t, 2>& output_padding)
      : options_(options), output_padding_(output_padding) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  Conv2dOptions options_;
  std::array<std::int64_t, 2> output_padding_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

}  // namespace starling
