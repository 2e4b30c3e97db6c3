#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/backend.h"
#include "kernels/cuda/runtime.h"

namespace starling::cuda {

using Streams = std::array<StreamHandle, kStreamKinds>;  ///< by StreamKind

/// The events of a backend: numbers that only rise, on handles that are used again once what they marked is done. So a number without a
/// handle is done.
class EventRing {
 public:
  explicit EventRing(const Streams& streams);
  ~EventRing();
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  Event record(StreamKind stream);
  void wait(StreamKind stream, Event event);
  void synchronize(Event event);
  bool done(Event event);

  /// Made at the start; more follow only while so many marks are ahead of the device.
  static constexpr std::size_t kHandles = 64;

 private:
  struct Mark {
    EventHandle handle = nullptr;
    StreamKind stream = StreamKind::kCompute;
  };
  /// Null where it is done and its handle is used again.
  const Mark* find(Event event) const;

  Streams streams_;
  std::deque<Mark> marks_;   ///< of the numbers first_, first_ + 1, …
  std::uint64_t first_ = 1;  ///< 0 is the number of no event
  std::vector<EventHandle> free_;
};

/// Pinned host memory, taken at the first use, in slots that are used in turn: what copies between the host and a device pass through, so
/// that no copy waits for the device unless all slots are in use.
class Staging {
 public:
  Staging(std::size_t slot_bytes, int slots, EventRing& events)
      : slot_bytes_(slot_bytes), slots_(static_cast<std::size_t>(slots)), events_(events) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::size_t slot_bytes() const { return slot_bytes_; }
  void to_device(const void* from, std::byte* to, std::size_t bytes, StreamHandle stream);
  /// Waits.
  void to_host(const std::byte* from, void* to, std::size_t bytes, StreamKind kind, StreamHandle stream);
  /// `to` is written by finish(); bytes fit a slot.
  Event to_host_later(const std::byte* from, void* to, std::size_t bytes, StreamKind kind, StreamHandle stream);
  /// Writes what the copies up to this event have brought; the caller has waited for it.
  void finish(Event event);
  /// The same for all copies.
  void finish_all();

 private:
  struct Slot {
    std::byte* memory = nullptr;
    EventHandle used = nullptr;  ///< recorded after its last use
    Event event;                 ///< of the last copy to the host
    void* to = nullptr;          ///< host memory that still waits for its bytes
    std::size_t bytes = 0;
  };
  Slot& next();
  void finish(Slot& slot);

  std::size_t slot_bytes_;
  void* memory_ = nullptr;
  std::vector<Slot> slots_;
  std::size_t turn_ = 0;
  EventRing& events_;
};

}  // namespace starling::cuda
