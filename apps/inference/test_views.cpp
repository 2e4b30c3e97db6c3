#include "apps/inference/test_views.h"

#include <algorithm>

#include "core/error.h"

namespace starling {

std::vector<std::string> test_view_names() { return {"none", "mirror", "mirror_translate"}; }

std::vector<TestView> test_views(std::string_view name) {
  const std::vector<std::string> names = test_view_names();
  require(std::find(names.begin(), names.end(), name) != names.end(), "views",
          "no views are named {}", name);
  if (name == "none") return {TestView{}};
  const double whole = name == "mirror" ? 1.0 : 0.5;
  std::vector<TestView> views{{0, 0, false, whole / 2}, {0, 0, true, whole / 2}};
  if (name == "mirror") return views;
  for (const std::int32_t step : {-1, 1}) {
    for (const bool mirrored : {false, true}) views.push_back({step, step, mirrored, 0.125});
  }
  return views;
}

PixelStep step_of(const TestView& view, std::int64_t height, std::int64_t width) {
  const auto within = [](std::int32_t step, std::int64_t size) { return size > 1 ? step : 0; };
  const std::int32_t down = within(view.down, height), right = within(view.right, width);
  return down != 0 || right != 0 || view.mirrored
             ? pixel_steps::window(down, right, view.mirrored, true)
             : PixelStep{};
}

void show(const TestView& view, const ImageBytes& image) {
  const PixelStep step = step_of(view, image.height, image.width);
  if (step.change != PixelChange::kNone) change_pixels(image, step);
}

}  // namespace starling
