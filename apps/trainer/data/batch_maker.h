#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "apps/trainer/data/loader.h"

namespace starling {

/// Fills batches: reads samples, augments, normalises and mixes images. On the CPU fill() does it
/// all; for another device it writes the samples' bytes and the windows of images into page-locked
/// memory. The thread that issues the backend's work has the device copy them from there on a
/// stream of their own (upload(), at best while the device computes on another batch), and make the
/// same numbers of them (make(): Backend::resize_pictures, change_pixels and augment_images). So no
/// thread copies a batch.
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;

  /// A batch on the device as the data set gives it, with the windows to take of its images.
  struct RawBatch {
    /// One block, of which the others are parts, but for images that are made of pictures
    Tensor all;
    std::vector<Tensor> tensors;  ///< in the order of DatasetInfo::tensors
    Tensor windows;               ///< int32 [batch, 3] as AugmentImages::params
    /// As AugmentImages::boxes and ::mix; empty where nothing is erased or mixed
    Tensor boxes, mix;
    Tensor steps;  ///< as ChangePixels::steps; empty where no bytes are changed
    /// As ResizePictures::parts and ::x; empty where images have the data set's size
    Tensor cuts, pool;
  };
  /// Memory for one batch; all but the first member are empty where the backend's memory is the
  /// host's.
  struct Slot {
    Batch batch;
    /// Page-locked; the same parts in the same places as device.all
    std::shared_ptr<std::byte> host;
    std::size_t bytes = 0;  ///< of it that fill() has written
    RawBatch device;
    Event free;     ///< the current stream's work on what the slot held before
    Event arrived;  ///< the last upload
    bool uploaded = false;
  };
  virtual Slot make_slot() const = 0;
  /// Whether the device has read what the slot's last upload copies, so that fill() may write
  /// there. Any thread may ask.
  virtual bool writable(const Slot& slot) const { return (void)slot, true; }
  /// The host waits for that.
  virtual void wait_until_writable(const Slot& slot) const { (void)slot; }
  /// Prepares `samples` (at most the slot's batch size); `change` augments their images, or is
  /// empty. The slot is writable.
  virtual void fill(Slot& slot, std::span<const std::int64_t> samples,
                    const ImageChange& change) = 0;
  /// Begins to copy what fill() prepared to the device, unless it has begun.
  virtual void upload(Slot& slot) const = 0;
  /// Sends what fill() prepared to the device, for work on the current stream; with a fixed place
  /// it is copied there.
  virtual void send(Slot& slot) const = 0;
  /// Makes slot.batch of what send() has sent. A graph may do so with a fixed place.
  virtual void make(Slot& slot) const = 0;
  /// The current stream has been given all work on the slot's batch: it may be filled and uploaded
  /// again.
  virtual void release(Slot& slot) const = 0;
  /// Waits for a slot's upload before the slot is destroyed. The current stream does, so that the
  /// memory can be used again there, and so does the host, for some seconds. What the device might
  /// still read then is never freed.
  virtual void settle(Slot& slot) const = 0;
};

/// Settings of a BatchMaker. One thread at a time may use it. `dtype` is what images become. With
/// `fixed_place` a device makes the batches of all slots from the same memory in the same memory,
/// one at a time.
struct BatchMakerSettings {
  std::int64_t batch_size = 1, crop_padding = 0;
  std::vector<double> erased;  ///< erased_values() of the augmentations
  std::int64_t steps = 0;      ///< steps_of() the augmentations
  bool mix = false;            ///< batches are mixed, and are full; then
  SoftTarget soft_target;      ///< this tensor's class numbers become shares
  DType dtype = DType::kFloat32;
  std::int64_t side = 0;  ///< of training images, in pixels; 0: as the data set declares them
  Dataset::Split split = Dataset::Split::kTrain;
  bool fixed_place = false;
  int threads = 1;  ///< that read samples, the caller's among them
};
std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& dataset,
                                             const BatchMakerSettings& settings, Backend& backend);

}  // namespace starling
