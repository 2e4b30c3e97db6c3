#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace starling {

/// A block of a device's memory as this process sees it. The memory goes with the last process that
/// has mapped it.
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

/// How ranks of one host get at each other's device memory, and tell each other by counters there
/// that they may: see comm/shared/peer_transport.h. Belongs to a backend; one thread uses it.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// The device, by a name that every process of the host knows it by.
  virtual std::string device() const = 0;
  /// Why other processes cannot map memory of this device; empty where they can.
  virtual std::string why_not_exported() const = 0;
  /// Why this device cannot read and write memory of the one of that name; empty where it can.
  virtual std::string why_not_reached(const std::string& device) const = 0;

  /// New memory, zeroed, outside the pool. Others map it by the file `descriptor`, which the caller
  /// closes. The device is done with a block before it is let go. Both throw Error with the reason.
  virtual std::shared_ptr<PeerBlock> create(std::size_t bytes, int& descriptor) = 0;
  virtual std::shared_ptr<PeerBlock> map(int descriptor, std::size_t bytes) = 0;

  // Issued to the current stream; the host does not wait. Counters lie in blocks and count in a
  // circle. In a capture, `value` is that of the captured step, and every launch adds the steps in
  // between (StepValues::pass).

  /// Sets a counter: whoever finds it at `value` sees all that the stream did before.
  virtual void signal(std::uint32_t* counter, std::uint32_t value) = 0;
  struct Awaited {
    const std::uint32_t* counter = nullptr;
    int rank = 0;  ///< whose it is
  };
  /// Purpose of a wait, for an error: which counter of what. The numbers are the caller's.
  struct Purpose {
    int bucket = 0, kind = 0;
  };
  /// Makes the stream wait until the counters have reached `value`. Once one has not for so many
  /// seconds it goes on at once, and lost() tells of it. After a loss nothing is awaited any more.
  virtual void await(std::span<const Awaited> counters, std::uint32_t value, const Purpose& purpose,
                     double limit_seconds) = 0;
  struct Loss {
    int rank = 0;
    Purpose purpose;
    std::uint32_t wanted = 0, seen = 0;
  };
  /// The first loss. Costs a look at host memory.
  virtual std::optional<Loss> lost() const = 0;
  /// Gives up: from now on nothing is awaited, on the device either.
  virtual void give_up() = 0;
  /// Forgets losses; the device must be done with all that was issued.
  virtual void restart() = 0;
};

}  // namespace starling
