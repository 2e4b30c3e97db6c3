#pragma once

#include <chrono>
#include <cstdint>
#include <string>

// Processes that share a fake device take turns on it, as contexts do on a GPU: for rehearsals of
// what takes how long there.
namespace starling::cuda::shim {

/// Who has the device, in a page that processes share. Whoever takes it has it for a slice, even
/// with nothing left to do: a kernel that waits for another process's would burn its slice too.
/// After that the next one may take it. A holder that dies keeps nobody waiting.
class SharedDevice {
 public:
  /// `file`: made where it is not there; the same for all that share. `owner`: not 0, one for each
  /// process.
  SharedDevice(const std::string& file, std::chrono::microseconds slice, std::uint32_t owner);
  ~SharedDevice();
  SharedDevice(const SharedDevice&) = delete;
  SharedDevice& operator=(const SharedDevice&) = delete;

  /// Returns once the device is this owner's. Several threads may ask.
  void take();
  std::uint64_t hand_overs() const;  ///< from one owner to another, of all processes

 private:
  struct Page;
  Page* page_ = nullptr;
  std::chrono::microseconds slice_;
  std::uint32_t owner_;
};

/// Takes this process's device, before each piece of its work. The environment's
/// STARLING_SHIM_SLICE_MS says how long a slice is; without it nothing is shared, and nobody waits.
/// Processes share where they have the same folder of temporary files.
void take_device();
/// Sleeps between two looks of a kernel that waits: other processes may have the device meanwhile.
void sleep_in_kernel(unsigned nanoseconds);

}  // namespace starling::cuda::shim
