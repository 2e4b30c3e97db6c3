#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace starling {

/// This process's mapping of a block of device memory, which is freed with its last mapping.
class PeerBlock {
 public:
  virtual ~PeerBlock() = default;
  PeerBlock(const PeerBlock&) = delete;
  PeerBlock& operator=(const PeerBlock&) = delete;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 protected:
  PeerBlock(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}

 private:
  std::byte* data_;
  std::size_t bytes_;
};

/// Device memory shared by ranks of one host, and counters in it to synchronise accesses: see
/// comm/shared/peer_transport.h. Owned by a backend, used by one thread.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// A name of the device, the same in every process of the host.
  virtual std::string device() const = 0;
  /// Why other processes cannot map this device's memory; empty if they can.
  virtual std::string why_not_exported() const = 0;
  /// Why this device cannot access the other device's memory; empty if it can.
  virtual std::string why_not_reached(const std::string& device) const = 0;

  /// Allocates zeroed memory outside the pool. Other processes map it with the file `descriptor`,
  /// which the caller must close. The device must have finished with a block before its release.
  /// Both functions throw Error with the reason.
  virtual std::shared_ptr<PeerBlock> create(std::size_t bytes, int& descriptor) = 0;
  virtual std::shared_ptr<PeerBlock> map(int descriptor, std::size_t bytes) = 0;

  // On the current stream; the host does not wait. Counters are in blocks and wrap around. In a
  // capture `value` is that of the captured step; launches add the number of steps since then
  // (StepValues::pass).

  /// Sets a counter with release semantics: the stream's earlier writes are visible to a device
  /// that reads `value`.
  virtual void signal(std::uint32_t* counter, std::uint32_t value) = 0;
  struct Awaited {
    const std::uint32_t* counter = nullptr;
    int rank = 0;  ///< its owner
  };
  /// Describes a wait in errors, in numbers that the caller defines.
  struct Purpose {
    int bucket = 0, kind = 0;
  };
  /// Makes the stream wait until the counters have reached `value`. On a timeout it continues, and
  /// lost() returns the wait. After a loss, waits return at once.
  virtual void await(std::span<const Awaited> counters, std::uint32_t value, const Purpose& purpose,
                     double limit_seconds) = 0;
  struct Loss {
    int rank = 0;
    Purpose purpose;
    std::uint32_t wanted = 0, seen = 0;
  };
  /// The first loss. Reads host memory only.
  virtual std::optional<Loss> lost() const = 0;
  /// From now on all waits return at once, including those in progress on the device.
  virtual void give_up() = 0;
  /// Clears losses. The device must be idle.
  virtual void restart() = 0;
};

}  // namespace starling
