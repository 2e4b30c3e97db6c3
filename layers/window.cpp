#include "layers/window.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/operations/convolutions.h"
#include "layers/layer.h"

namespace starling {

Window2d read_window(ConfigSection& section, WindowKeys keys) {
  const Range size = Range::closed(1, 1024);
  const Range padding = Range::closed(0, 1024);
  Window2d window;
  const auto set = [](std::array<std::int64_t, 2>& to, const std::vector<std::int64_t>& from) {
    to = {from.at(0), from.at(1)};
  };
  if (keys == WindowKeys::kBlur) {
    set(window.kernel, section.pair("kernel_size", {3, 3}, Range::closed(1, kLongestBlur),
                                    "window size in pixels"));
  } else {
    set(window.kernel, section.required_pair("kernel_size", size, "window size in pixels"));
  }
  if (keys != WindowKeys::kConvolution) {
    if (keys == WindowKeys::kBlur) {
      set(window.stride, section.pair("stride", {2, 2}, size, "step between windows"));
      set(window.padding,
          section.pair("padding", {window.kernel[0] / 2, window.kernel[1] / 2}, padding,
                       "pixels of zeros added at every border; half of kernel_size at most, which "
                       "is the default"));
    } else {
      set(window.stride, section.pair("stride", {window.kernel[0], window.kernel[1]}, size,
                                      "step between windows; default: kernel_size"));
      set(window.padding,
          section.pair("padding", {0, 0}, padding,
                       "pixels added at every border; half of kernel_size at most"));
    }
    for (std::size_t axis = 0; axis < 2; ++axis) {
      if (2 * window.padding[axis] > window.kernel[axis]) {
        section.error("padding", "found {}, but at most half of kernel_size, {}, is allowed",
                      window.padding[axis], window.kernel[axis] / 2);
      }
    }
    return window;
  }
  set(window.stride, section.pair("stride", {1, 1}, size, "step between windows"));
  set(window.padding,
      section.pair("padding", {0, 0}, padding, "pixels of zeros added at every border"));
  set(window.dilation,
      section.pair("dilation", {1, 1}, size, "step between the pixels of a window"));
  section.read("groups", window.groups, kSizeRange,
               "channels are split into so many groups that do not mix");
  return window;
}

Shape window_output(const Layer& layer, const Shape& input, const Window2d& window,
                    std::int64_t channels) {
  for (int axis = 0; axis < 2; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    const std::int64_t reach = window.dilation[i] * (window.kernel[i] - 1) + 1;
    if (input[axis] + 2 * window.padding[i] < reach) {
      fail(ExitCode::kUsage, "layer",
           "{}: an input of {} with padding {} is smaller than the window of {} pixels",
           layer.name(), input.text(), window.padding[i], reach);
    }
  }
  return {window.output(0, input[0]), window.output(1, input[1]), channels};
}

}  // namespace starling
