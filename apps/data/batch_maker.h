#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apps/data/loader.h"

namespace starling {

/// Fills batches: reads images, augments and normalises them. On the CPU fill() does it all; for another device it gathers the bytes of the
/// images and their crops and flips, and send(), on the thread that issues the backend's work, copies these and has the device make the
/// same numbers (Backend::augment_images).
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;

  /// Memory for one batch; all but the first member are empty where the backend's memory is the host's.
  struct Slot {
    Batch batch;
    std::vector<std::uint8_t> bytes;                 ///< of the images, as the data set gives them
    std::vector<std::int32_t> augmentation, labels;  ///< [batch, 3] as AugmentImages::params, [batch]
    Tensor device_bytes, device_augmentation;
  };
  virtual Slot make_slot() const = 0;
  /// Prepares `samples` (at most the slot's batch size) of a split; `augment` tells each sample's crop and flip, or is empty.
  virtual void fill(Slot& slot, Dataset::Split split, std::span<const std::int64_t> samples,
                    const std::function<Augmentation(std::int64_t sample)>& augment) = 0;
  /// Copies what fill() prepared to the device, if it is not there already.
  virtual void send(Slot& slot) const = 0;
};

/// One that only its caller's thread uses at a time. `dtype` is the images'.
std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& dataset, std::int64_t batch_size, std::int64_t crop_padding, Backend& backend,
                                             DType dtype);

}  // namespace starling
