#pragma once

#include "kernels/cpu/kernels.h"

// The windows of poolings and convolutions, for the files compiled once per instruction set.

namespace starling::cpu::STARLING_ISA {
namespace {

/// Calls f(flat kernel position, flat input pixel) for the pixels of the window of output (p, q)
/// that lie inside the image.
template <class F>
STARLING_HD void for_window(const Geometry& g, Index p, Index q, F f) {
  for (Index kh = 0; kh < g.kernel_h; ++kh) {
    const Index h = p * g.stride_h - g.pad_h + kh * g.dilation_h;
    if (h < 0 || h >= g.height) continue;
    for (Index kw = 0; kw < g.kernel_w; ++kw) {
      const Index w = q * g.stride_w - g.pad_w + kw * g.dilation_w;
      if (w < 0 || w >= g.width) continue;
      f(kh * g.kernel_w + kw, h * g.width + w);
    }
  }
}

}  // namespace
}  // namespace starling::cpu::STARLING_ISA
