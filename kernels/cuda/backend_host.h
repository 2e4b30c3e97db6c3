#pragma once

#include <cstddef>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/staging.h"

namespace starling::cuda {

/// Copies between host and device, and events.
struct CudaBackend::Host {
  static constexpr std::size_t kSmallCopy = 64 << 10;  ///< what copy_to_host_later promises
  static constexpr std::size_t kLargeCopy = 8 << 20;
  /// Number of pieces that lets the upload of a batch (ResNet-50's 256 images are 38 MB) wait its
  /// turn on the device, not hold up the host.
  static constexpr int kLargePieces = 16;

  explicit Host(const Streams& streams)
      : events(streams), small(kSmallCopy, 32, events), large(kLargeCopy, kLargePieces, events) {}
  Staging& staging(std::size_t bytes) { return bytes <= kSmallCopy ? small : large; }

  EventRing events;
  Staging small, large;
};

}  // namespace starling::cuda
