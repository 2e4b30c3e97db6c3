#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "apps/pictures/picture.h"
#include "core/error.h"
#include "core/shape.h"
#include "kernels/cpu/resize.h"

namespace starling {

/// Memory for the pixels of a batch's pictures, allocated consecutively. Thread-safe.
class PicturePool {
 public:
  /// Size relative to that of the batch's images: random crops of photographs have twice as many
  /// pixels on average
  static constexpr double kRoom = 2.5;
  PicturePool(std::int64_t image_bytes, std::int64_t images)
      : image_bytes_(whole_lines(image_bytes)),
        base_(images * image_bytes_),
        spare_(static_cast<std::int64_t>((kRoom - 1.0) * static_cast<double>(base_))) {}
  std::int64_t bytes() const { return base_ + spare_; }
  void restart(std::uint8_t* memory) {
    memory_ = memory;
    used_ = 0;
    spare_left_ = spare_;
  }
  /// Allocates `bytes`, but at least an image's size, and sets `place` to the offset. Null if the
  /// rest is needed for the remaining images of the batch.
  std::uint8_t* take(std::int64_t bytes, std::int64_t& place) {
    const std::int64_t wanted = std::max(whole_lines(bytes), image_bytes_),
                       more = wanted - image_bytes_;
    std::int64_t left = spare_left_;
    do {
      if (left < more) return nullptr;
    } while (!spare_left_.compare_exchange_weak(left, left - more));
    place = used_.fetch_add(wanted);
    return memory_ + place;
  }
  std::int64_t used() const { return used_; }

 private:
  static std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
  std::int64_t image_bytes_, base_, spare_;
  std::uint8_t* memory_ = nullptr;
  std::atomic<std::int64_t> used_ = 0, spare_left_ = 0;
};

/// Receives the pixels of one picture at a time and stores them in the pool, for a device to
/// resize.
class PoolTarget final : public CutTarget {
 public:
  PoolTarget(PicturePool& pool, const Shape& image)
      : pool_(pool), shape_(image), resized_(static_cast<std::size_t>(image.elements())) {}
  void restart() { pixels_ = nullptr; }
  std::uint8_t* take(std::int64_t bytes) override {
    // Memory is allocated once per picture.
    require(!pixels_, "loader", "a data set took memory for a picture twice");
    return pixels_ = pool_.take(bytes, place_);
  }
  std::uint8_t* pixels() const { return pixels_; }
  /// A buffer for data sets that write a resized image.
  std::byte* image() { return reinterpret_cast<std::byte*>(resized_.data()); }
  /// Stores the image of such a data set in the pool, after it was read.
  void finish() {
    if (!pixels_) store();
    cut.place = place_;
  }
  /// Resizes the picture now, for augmentations that access the image's bytes.
  void resize() {
    cpu::resize_cut(cut, pixels_, shape_[0], shape_[1], resized_.data());
    store();
    cut.place = place_;
  }

 private:
  void store() {
    if (!pixels_) take(shape_.elements());
    std::memcpy(pixels_, resized_.data(), resized_.size());
    cut = CutPicture::whole(shape_[0], shape_[1]);
  }
  PicturePool& pool_;
  Shape shape_;
  std::vector<std::uint8_t> resized_;
  std::uint8_t* pixels_ = nullptr;
  std::int64_t place_ = 0;
};

}  // namespace starling
