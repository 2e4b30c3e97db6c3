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

/// Name of the host's waits for the device on the timeline.
inline constexpr std::string_view kHostWait = "wait for the device";

using Streams = std::array<StreamHandle, kStreamKinds>;  ///< by StreamKind

/// The events of a backend: numbers that only rise, on handles that are used again once what they
/// marked is done. So a number without a handle is done. One thread records and waits; any thread
/// may ask done().
///
/// Marks in a capture are its own, on the streams that take part in it: kCompute, and those that
/// have waited for one of its marks. Every launch of the graph comes after what kUpdate and
/// kCommunication have been told until then, and after what kUpload has where the capture waits for
/// an event of it from before (the streams that end_capture() returns). Once the capture has ended,
/// its marks stand for the last launch of any graph.
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
  /// The streams that the capture waits for from before it.
  std::vector<StreamKind> end_capture() noexcept;
  /// A graph has been launched, and `after` recorded.
  void launched(Event after);

  /// Handles made at the start; more follow only while so many marks are ahead of the device. A
  /// power of two.
  static constexpr std::size_t kHandles = 64;

 private:
  struct Mark {
    EventHandle handle = nullptr;
    StreamKind stream = StreamKind::kCompute;
  };
  Mark& at(std::uint64_t number) { return marks_[number & (marks_.size() - 1)]; }
  /// Finds an event's mark; null where it is done and its handle is used again. Under mutex_.
  const Mark* find(Event event);
  /// Makes handles free, new ones only where none is done. Under mutex_.
  void recycle();
  void add_handles();
  /// Bit in the numbers of a capture's marks
  static constexpr std::uint64_t kCaptured = std::uint64_t{1} << 63;
  static bool is_captured(Event event) { return (event.id & kCaptured) != 0; }
  Event record_captured(StreamKind stream);
  void wait_captured(StreamKind stream, Event event);

  Streams streams_;
  /// Guards the following: a handle must not be recorded again while somebody asks for what it
  /// marked before
  std::mutex mutex_;
  std::vector<Mark> marks_;  ///< of the numbers from first_ to before next_, round and round
  std::uint64_t first_ = 1, next_ = 1;  ///< 0 is the number of no event
  std::vector<EventHandle> free_;

  bool capturing_ = false;
  std::vector<EventHandle> captured_handles_;  ///< used again by every capture
  std::vector<StreamKind> captured_;           ///< streams of this capture's marks
  std::uint64_t captured_first_ = 1;           ///< number of its first
  std::array<bool, kStreamKinds> joined_{};    ///< streams that take part in it
  std::array<bool, kStreamKinds> outer_{};     ///< streams whose work from before it is waited for
  Event last_launch_;
};

/// Pinned host memory, taken at the first use, in slots that are used in turn: what copies between
/// the host and a device pass through, so that no copy waits for the device unless all slots are in
/// use.
class Staging {
 public:
  Staging(std::size_t slot_bytes, int slots, EventRing& events)
      : slot_bytes_(slot_bytes), slots_(static_cast<std::size_t>(slots)), events_(events) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::size_t slot_bytes() const { return slot_bytes_; }
  void to_device(const void* from, std::byte* to, std::size_t bytes, StreamHandle stream);
  /// Copies numbers that `write` puts into the slot; bytes fit it.
  template <class Write>
  void written_to_device(const Write& write, std::byte* to, std::size_t bytes,
                         StreamHandle stream) {
    Slot& slot = next();
    write(slot.memory);
    copy_async(to, slot.memory, bytes, CopyKind::kHostToDevice, stream);
    record_event(slot.used, stream);
  }
  /// Waits.
  void to_host(const std::byte* from, void* to, std::size_t bytes, StreamKind kind,
               StreamHandle stream);
  /// `to` is written by finish(); bytes fit a slot.
  Event to_host_later(const std::byte* from, void* to, std::size_t bytes, StreamKind kind,
                      StreamHandle stream);
  /// Writes what the copies up to this event have brought; the caller has waited for it.
  void finish(Event event);
  /// Finishes all copies.
  void finish_all();

  /// Bytes that hosts have copied into slots and out of them since the process began; for tests.
  static std::uint64_t copied_bytes();

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
