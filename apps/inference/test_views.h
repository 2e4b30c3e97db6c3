#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/pictures/pixels.h"

namespace starling {

/// A way of showing a test image; outputs are summed with these weights (test-time augmentation).
struct TestView {
  /// By how many pixels the image's window is shifted; beyond its rim it is mirrored
  std::int32_t down = 0, right = 0;
  bool mirrored = false;  ///< left to right
  double weight = 1.0;
};

/// "none", "mirror" and "mirror_translate", which is the paper's of arXiv 2404.00498, section 3.5:
/// the image with weight 1/2, moved by one pixel up and left, and down and right, with 1/4 each;
/// all of it half as it is and half mirrored. Their weights add up to 1.
std::vector<std::string> test_view_names();
/// Error(kInternal) where there are none of that name.
std::vector<TestView> test_views(std::string_view name);
/// The step that makes the view of an image of that size; kNone for the view without shift or
/// mirror.
PixelStep step_of(const TestView& view, std::int64_t height, std::int64_t width);
/// Changes the image's bytes to what is seen; for the view without shift or mirror this does
/// nothing. An image of one pixel a side is not moved.
void show(const TestView& view, const ImageBytes& image);

}  // namespace starling
