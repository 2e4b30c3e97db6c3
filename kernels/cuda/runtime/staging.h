#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {

/// Name of host waits for the device on the timeline.
inline constexpr std::string_view kHostWait = "wait for the device";

using Streams = std::array<StreamHandle, kStreamKinds>;  ///< by StreamKind

/// The events of a backend: increasing numbers, on event handles that are reused once their event
/// is done. A number without a handle is therefore done. One thread records and waits; any thread
/// may call done().
///
/// A capture has events of its own, on the streams that take part in it: kCompute, and streams that
/// have waited for one of its events. Every launch of the graph is ordered after earlier work on
/// kUpdate and kCommunication, and on kUpload if the capture waits for an event of kUpload from
/// before it (end_capture() returns these streams). After the capture its events refer to the last
/// launch of any graph.
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

  void begin_capture();
  /// Returns the streams that launches of the graph must wait for.
  std::vector<StreamKind> end_capture() noexcept;
  /// Called after a graph was launched and `after` recorded.
  void launched(Event after);

  /// Initial number of handles, a power of two; more are made when all of them have pending events.
  static constexpr std::size_t kHandles = 64;

 private:
  struct Mark {
    EventHandle handle = nullptr;
    StreamKind stream = StreamKind::kCompute;
  };
  Mark& at(std::uint64_t number) { return marks_[number & (marks_.size() - 1)]; }
  /// An event's entry; null if it is done and its handle was reused. Requires mutex_.
  const Mark* find(Event event);
  /// Frees handles of completed events; makes new ones if there are none. Requires mutex_.
  void recycle();
  void add_handles();
  /// Marks the numbers of captured events
  static constexpr std::uint64_t kCaptured = std::uint64_t{1} << 63;
  static bool is_captured(Event event) { return (event.id & kCaptured) != 0; }
  Event record_captured(StreamKind stream);
  void wait_captured(StreamKind stream, Event event);

  Streams streams_;
  /// Guards the members below: a handle must not be recorded again while another thread queries its
  /// previous event
  std::mutex mutex_;
  std::vector<Mark> marks_;             ///< ring buffer of events first_ … next_ - 1
  std::uint64_t first_ = 1, next_ = 1;  ///< numbers start at 1; 0 is no event
  std::vector<EventHandle> free_;

  bool capturing_ = false;
  std::vector<EventHandle> captured_handles_;  ///< reused by every capture
  std::vector<StreamKind> captured_;           ///< the stream of each event of this capture
  std::uint64_t captured_first_ = 1;           ///< number of its first event
  std::array<bool, kStreamKinds> joined_{};    ///< streams that take part in the capture
  std::array<bool, kStreamKinds> outer_{};     ///< streams whose earlier work it waits for
  Event last_launch_;
};

/// Pinned host memory for copies between host and device, allocated at the first use, in slots used
/// in rotation. A copy only waits for the device if all slots are in use.
class Staging {
 public:
  Staging(std::size_t slot_bytes, int slots, EventRing& events)
      : slot_bytes_(slot_bytes), slots_(static_cast<std::size_t>(slots)), events_(events) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::size_t slot_bytes() const { return slot_bytes_; }
  void to_device(const void* from, std::byte* to, std::size_t bytes, StreamHandle stream);
  /// Copies what `write` stores in the slot, at most a slot's size.
  template <class Write>
  void written_to_device(const Write& write, std::byte* to, std::size_t bytes,
                         StreamHandle stream) {
    Slot& slot = next();
    write(slot.memory);
    copy_async(to, slot.memory, bytes, CopyKind::kHostToDevice, stream);
    record_event(slot.used, stream);
  }
  /// Blocking.
  void to_host(const std::byte* from, void* to, std::size_t bytes, StreamKind kind,
               StreamHandle stream);
  /// finish() writes `to`; at most a slot's size.
  Event to_host_later(const std::byte* from, void* to, std::size_t bytes, StreamKind kind,
                      StreamHandle stream);
  /// Writes the data of the copies up to this event, which the caller has waited for.
  void finish(Event event);
  void finish_all();

  /// Bytes copied into and out of slots by the host in this process; for tests.
  static std::uint64_t copied_bytes();

 private:
  struct Slot {
    std::byte* memory = nullptr;
    EventHandle used = nullptr;  ///< recorded after its last use
    Event event;                 ///< of the last copy to the host
    void* to = nullptr;          ///< destination of a copy that is not finished
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
