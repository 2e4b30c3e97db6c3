#pragma once

#include <cstdint>
#include <memory>

#include "layers/conv2d.h"
#include "layers/sequential.h"

namespace starling {

/// A sequence of layers for images with a minimal side length.
class ImageModel : public Sequential {
 public:
  explicit ImageModel(std::int64_t least_side = 1) : least_(least_side) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 3) bad_shape(input, "an image H×W×C");
    if (input[0] < least_ || input[1] < least_)
      bad_shape(input, fmt::format("an image of {0}×{0} pixels or more", least_));
    return Sequential::build(input);
  }

 private:
  std::int64_t least_;
};

/// A convolution without bias that keeps the size, apart from its stride.
inline std::unique_ptr<Conv2d> plain_convolution(
    std::int64_t channels, std::int64_t kernel, std::int64_t stride, std::int64_t groups = 1,
    Conv2dOptions::WeightInit init = Conv2dOptions::WeightInit::kKaimingNormalFanOut) {
  const std::int64_t padding = kernel / 2;
  return std::make_unique<Conv2d>(Conv2dOptions{.out_channels = channels,
                                                .window = {.kernel = {kernel, kernel},
                                                           .stride = {stride, stride},
                                                           .padding = {padding, padding},
                                                           .groups = groups},
                                                .bias = false,
                                                .init = init});
}

}  // namespace starling
