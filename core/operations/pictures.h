#pragma once

#include <array>
#include <cstdint>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Images of bytes: augmentation, resizing.
namespace starling {

/// Crop, flip and normalise uint8 images: x[B,H,W,C] → y[B,H,W,C] floating. The image is padded by
/// `crop_padding` zeros (before normalising), the window at (offset_y, offset_x) is taken, mirrored
/// where flip is set, then (v/255 - mean)/std per channel. params: int32 [B,3] rows of (offset_y,
/// offset_x, flip), on the device; empty means no augmentation. boxes: int32 [B,K,4] rows of (top,
/// left, bottom, right), K at most 4: box k puts values[k] into y[top … bottom - 1, left … right -
/// 1], later ones over earlier ones. mix: int32 [5], (own in 1/2^24, top, left, bottom, right): at
/// last y = own·y + (1 - own)·y of the image before, of the first that of the last; in that
/// rectangle own is 0. Both are optional and on the device, and their places are those of y.
struct AugmentImages {
  Tensor x, params, y;
  std::int64_t crop_padding = 0;
  std::array<double, 4> mean{}, std{};  ///< per channel, at most 4
  Tensor boxes = {}, mix = {};
  std::array<double, 4> values{};  ///< of the boxes
  Accesses accesses() const { return Accesses().read({x, params, boxes, mix}).write({y}); }
  /// Rectangles of each image.
  std::int64_t boxes_each() const { return boxes ? boxes.shape()[1] : 0; }
};

inline constexpr std::int64_t kCutPictureNumbers = 14;  ///< int32 of a CutPicture

/// Makes images of parts of pictures that have any size: y[B,H,W,3] of the bytes x. parts: int32
/// [B,14], for each image a CutPicture (kernels/math/resize_pictures.h), whose `place` counts from
/// x and lies in it with all pixels.
struct ResizePictures {
  Tensor x, parts, y;
  Accesses accesses() const { return Accesses().read({x, parts}).write({y}); }
};

inline constexpr std::int64_t kPixelStepNumbers = 9;  ///< int32 of a PixelStep

/// Changes the bytes of images: x[B,H,W,C] → y, of at most 4 channels. steps: int32 [B,K,9], for
/// each image K PixelSteps (kernels/math/pixel_steps.h), carried out up to the first that is kNone.
/// `scratch` is as large as x, and none of the three overlap.
struct ChangePixels {
  Tensor x, steps, scratch, y;
  Accesses accesses() const { return Accesses().read({x, steps}).write({y}).aside({scratch}); }
};

}  // namespace starling
