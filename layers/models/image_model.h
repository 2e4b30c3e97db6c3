#pragma once

#include <cstdint>

#include "layers/sequential.h"

namespace starling {

/// Layers one after the other, for images of so many pixels a side or more.
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

}  // namespace starling
