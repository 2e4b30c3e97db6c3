#include "core/operations/pictures.h"

#include <limits>

#include "core/error.h"
#include "core/operations/list.h"

namespace starling {

// A loader asks for these once for each image of some thousand bytes: texts are made where they are
// needed.
void check(const AugmentImages& args) {
  require(args.x && args.y && args.x.dtype() == DType::kUInt8 && args.x.shape().rank() == 4 &&
              args.x.shape() == args.y.shape() && args.x.shape()[3] >= 1 && args.x.shape()[3] <= 4,
          "augment_images", "x must be bytes of B×H×W×C with at most 4 channels, y of its shape");
  if (args.boxes) {
    const Shape& shape = args.boxes.shape();
    if (args.boxes.dtype() != DType::kInt32 || shape.rank() != 3 || shape[0] != args.x.shape()[0] ||
        shape[2] != 4 || shape[1] > static_cast<std::int64_t>(args.values.size()))
      fail(ExitCode::kInternal, "augment_images",
           "boxes are {} of {}; needed: int32 [{}, at most {}, 4]", shape.text(),
           name_of(args.boxes.dtype()), args.x.shape()[0], args.values.size());
  }
  if (args.params) {
    if (args.params.dtype() != DType::kInt32 || args.params.elements() != args.x.shape()[0] * 3)
      fail(ExitCode::kInternal, "augment_images", "params are {} of {}; needed: int32 [{}, 3]",
           args.params.shape().text(), name_of(args.params.dtype()), args.x.shape()[0]);
  }
  if (args.mix) {
    if (args.mix.dtype() != DType::kInt32 || args.mix.elements() != 5)
      fail(ExitCode::kInternal, "augment_images", "mix is {} of {}; needed: int32 [5]",
           args.mix.shape().text(), name_of(args.mix.dtype()));
  }
}

void check(const ResizePictures& args) {
  require(args.x && args.y && args.x.dtype() == DType::kUInt8 && args.y.dtype() == DType::kUInt8 &&
              args.y.shape().rank() == 4 && args.y.shape()[3] == 3,
          "resize_pictures", "x must be bytes, y bytes of B×H×W×3");
  const Shape shape = args.parts ? args.parts.shape() : Shape{};
  require(shape.rank() == 2 && args.parts.dtype() == DType::kInt32 &&
              shape[0] == args.y.shape()[0] && shape[1] == kCutPictureNumbers,
          "resize_pictures", "parts are {}; needed: int32 [{}, {}]", shape.text(),
          args.y.shape()[0], kCutPictureNumbers);
}

void check(const ChangePixels& args) {
  const auto bytes = [&](const Tensor& tensor) {
    return tensor && tensor.dtype() == DType::kUInt8 && tensor.shape() == args.x.shape();
  };
  require(bytes(args.x) && bytes(args.scratch) && bytes(args.y) && args.x.shape().rank() == 4 &&
              args.x.shape()[3] >= 1 && args.x.shape()[3] <= 4 &&
              args.x.shape()[1] * args.x.shape()[2] <= std::numeric_limits<std::int32_t>::max(),
          "change_pixels",
          "x, scratch and y must be bytes of one shape, B×H×W×C with at most 4 channels");
  const Shape shape = args.steps ? args.steps.shape() : Shape{};
  if (shape.rank() != 3 || args.steps.dtype() != DType::kInt32 || shape[0] != args.x.shape()[0] ||
      shape[2] != kPixelStepNumbers)
    fail(ExitCode::kInternal, "change_pixels", "steps are {}; needed: int32 [{}, some, {}]",
         shape.text(), args.x.shape()[0], kPixelStepNumbers);
}

}  // namespace starling
