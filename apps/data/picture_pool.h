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
      : image_(whole_lines(image_bytes)),
        all_(images * image_),
        more_(static_cast<std::int64_t>((kRoom - 1.0) * static_cast<double>(all_))) {}
  std::int64_t bytes() const { return all_ + more_; }
  void restart(std::uint8_t* memory) {
    memory_ = memory;
    used_ = 0;
    left_ = more_;
  }
  /// Allocates `bytes`, but at least an image's size, and sets `place` to the offset. Null if the
  /// rest is needed for the remaining images of the batch.
  std::uint8_t* take(std::int64_t bytes, std::int64_t& place) {
    const std::int64_t wanted = std::max(whole_lines(bytes), image_), more = wanted - image_;
    std::int64_t left = left_;
    do {
      if (left < more) return nullptr;
    } while (!left_.compare_exchange_weak(left, left - more));
    place = used_.fetch_add(wanted);
    return memory_ + place;
  }
  std::int64_t used() const { return used_; }

 private:
  static std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
  std::int64_t image_, all_, more_;
  std::uint8_t* memory_ = nullptr;
  std::atomic<std::int64_t> used_ = 0, left_ = 0;
};

/// Receives the pixels of one picture at a time and stores them in the pool, for a device to
/// resize.
class PoolTarget final : public CutTarget {
 public:
  PoolTarget(PicturePool& pool, const Shape& image)
      : pool_(pool), image_(image), made_(static_cast<std::size_t>(image.elements())) {}
  void restart() { pixels_ = nullptr; }
  std::uint8_t* take(std::int64_t bytes) override {
    // Memory is allocated once per picture.
    require(!pixels_, "loader", "a data set took memory for a picture twice");
    return pixels_ = pool_.take(bytes, place_);
  }
  std::uint8_t* pixels() const { return pixels_; }
  /// A buffer for data sets that write a resized image.
  std::byte* image() { return reinterpret_cast<std::byte*>(made_.data()); }
  /// Stores the image of such a data set in the pool, after it was read.
  void finish() {
    if (!pixels_) put();
    cut.place = place_;
  }
  /// Resizes the picture now, for augmentations that access the image's bytes.
  void resize() {
    cpu::resize_cut(cut, pixels_, image_[0], image_[1], made_.data());
    put();
    cut.place = place_;
  }

 private:
  void put() {
    if (!pixels_) take(image_.elements());
    std::memcpy(pixels_, made_.data(), made_.size());
    cut = CutPicture::whole(image_[0], image_[1]);
  }
  PicturePool& pool_;
  Shape image_;
  std::vector<std::uint8_t> made_;
  std::uint8_t* pixels_ = nullptr;
  std::int64_t place_ = 0;
};

}  // namespace starling
