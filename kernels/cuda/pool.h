#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/backend.h"

namespace starling::cuda {

/// Device memory for tensors. Freed blocks are kept by stream and size class and handed out again on the same stream, without a wait:
/// whatever the stream was told to do with a block before comes before what it is told next. The driver is asked only while the pool grows:
/// small blocks are cut from slabs, large ones are their own. Thread-safe.
class Pool {
 public:
  /// `device`: whose memory; `name` for messages; `wait_for_all` makes the host wait for all streams.
  Pool(int device, std::string name, std::function<void()> wait_for_all);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  struct Block {
    std::byte* data = nullptr;
    std::size_t size = 0;  ///< what it can hold
    StreamKind stream = StreamKind::kCompute;
  };
  /// At least `bytes` bytes, aligned to 512, for work on `stream`. Error(kMemory) with the needed and the free bytes where there are none,
  /// after all cached blocks have been given back to the driver.
  Block take(std::size_t bytes, StreamKind stream);
  void give_back(const Block& block) noexcept;
  MemoryStats stats() const;
  /// No wait from now on: the streams are gone.
  void close();

  /// The size class of a request: 512 bytes and up, at most an eighth is wasted above 4 KiB.
  static std::size_t size_class(std::size_t bytes);
  /// Requests above it own their memory.
  static constexpr std::size_t kLargestSmall = std::size_t{4} << 20;
  static constexpr std::size_t kSlab = std::size_t{32} << 20;

 private:
  std::byte* from_cache(std::size_t& size, StreamKind stream);
  std::byte* from_driver(std::size_t size);
  std::byte* driver_allocate(std::size_t size);
  std::size_t release_cached();
  [[noreturn]] void out_of_memory(std::size_t size) const;

  const int device_;
  const std::string name_;
  std::function<void()> wait_for_all_;
  mutable std::mutex mutex_;
  std::array<std::map<std::size_t, std::vector<std::byte*>>, kStreamKinds> free_;  ///< by stream and size
  std::vector<std::byte*> slabs_;
  std::byte* cut_ = nullptr;  ///< what is left of the newest slab
  std::size_t left_ = 0;
  MemoryStats stats_;
};

}  // namespace starling::cuda
