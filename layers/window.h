#pragma once

#include "core/backend.h"
#include "core/config.h"
#include "core/operations/convolutions.h"
#include "core/shape.h"

namespace starling {

class Layer;

/// Widths that a config may ask for: a bound that keeps element counts far from overflow.
inline const Range kSizeRange = Range::closed(1, 1 << 24);
/// Blocks of a model, each of which is made before anything says how much memory they take.
inline const Range kDepthRange = Range::closed(1, 1024);

enum class WindowKeys : std::uint8_t { kConvolution, kPooling, kBlur };

/// Reads kernel_size, stride, padding (and, for convolutions, dilation and groups) with PyTorch's
/// meanings and defaults. A blur, which PyTorch lacks, has a kernel of 3, a stride of 2 and half of
/// the kernel as padding.
Window2d read_window(ConfigSection& section, WindowKeys keys);

/// {P, Q, channels} for an image {H, W, C}; Error(kUsage) naming `layer` where the padded image is
/// smaller than the window.
Shape window_output(const Layer& layer, const Shape& input, const Window2d& window,
                    std::int64_t channels);

}  // namespace starling
