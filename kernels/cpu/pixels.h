#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/math/pixel_steps.h"

namespace starling::cpu {

/// One image of height × width × channels bytes and what becomes of it, as ChangePixels has it for
/// a batch. `scratch` may be null where there is one step.
struct ImageSteps {
  std::int64_t height = 0, width = 0, channels = 0;
  const PixelStep* steps = nullptr;
  std::int64_t most = 0;
  const std::uint8_t* x = nullptr;
  std::uint8_t *scratch = nullptr, *y = nullptr;
};
/// The bits are the same on every instruction set. Any thread may call it.
void change_image(const ImageSteps& image, Isa isa);

/// PixelChange::kResize of an image.
void enlarge(const std::int32_t* part, std::int64_t height, std::int64_t width,
             std::int64_t channels, const std::uint8_t* from, std::uint8_t* to);

}  // namespace starling::cpu
