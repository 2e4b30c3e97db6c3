#pragma once

#include "core/backend.h"
#include "core/config.h"
#include "core/operations/convolutions.h"
#include "core/shape.h"

namespace starling {

class Layer;

/// Limit on widths in a config, so that element counts do not overflow.
inline const Range kSizeRange = Range::closed(1, 1 << 24);
/// Limit on blocks of a model, which are constructed before their memory is estimated.
inline const Range kDepthRange = Range::closed(1, 1024);

enum class WindowKeys : std::uint8_t { kConvolution, kPooling, kBlur };

/// Reads kernel_size, stride, padding (and, for convolutions, dilation and groups) with PyTorch's
/// meanings and defaults. A blur, which PyTorch lacks, has by default a kernel of 3, a stride of 2
/// and padding of half the kernel.
Window2d read_window(ConfigSection& section, WindowKeys keys);

/// {P, Q, channels} for an image {H, W, C}; Error(kUsage) with the name of `layer` if the padded
/// image is smaller than the window.
Shape window_output(const Layer& layer, const Shape& input, const Window2d& window,
                    std::int64_t channels);

}  // namespace starling
