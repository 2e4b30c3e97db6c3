#include "kernels/cuda/runtime/staging.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/trace.h"

namespace starling::cuda {
namespace {

std::atomic<std::uint64_t> copied{0};  // bytes, through slots

void copy_on_host(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  copied += bytes;
}

}  // namespace

EventRing::EventRing(const Streams& streams) : streams_(streams), marks_(kHandles) {
  free_.reserve(kHandles);
  for (std::size_t i = 0; i < kHandles; ++i) free_.push_back(create_event());
}

EventRing::~EventRing() {
  for (; first_ < next_; ++first_) destroy_event(at(first_).handle);
  for (const EventHandle handle : free_) destroy_event(handle);
  for (const EventHandle handle : captured_handles_) destroy_event(handle);
}

void EventRing::recycle() {
  for (; first_ < next_ && event_done(at(first_).handle); ++first_)
    free_.push_back(at(first_).handle);
  if (free_.empty()) add_handles();
}

/// Doubles the number of handles and of marks, when all handles are in use.
void EventRing::add_handles() {
  std::vector<Mark> wider(2 * marks_.size());
  free_.reserve(wider.size());
  for (std::uint64_t number = first_; number < next_; ++number)
    wider[number & (wider.size() - 1)] = at(number);
  while (free_.size() < marks_.size()) free_.push_back(create_event());
  marks_ = std::move(wider);
}

Event EventRing::record(StreamKind stream) {
  const std::lock_guard lock(mutex_);
  if (capturing_ && joined_[static_cast<std::size_t>(stream)]) return record_captured(stream);
  // Events cannot be queried during a capture
  if (free_.empty()) capturing_ ? add_handles() : recycle();
  record_event(free_.back(), streams_[static_cast<std::size_t>(stream)]);
  at(next_) = {free_.back(), stream};
  free_.pop_back();
  return {next_++};
}

Event EventRing::record_captured(StreamKind stream) {
  const std::size_t place = captured_.size();
  if (place == captured_handles_.size()) captured_handles_.push_back(create_event());
  record_event(captured_handles_[place], streams_[static_cast<std::size_t>(stream)]);
  captured_.push_back(stream);
  return {kCaptured | (captured_first_ + place)};
}

void EventRing::wait_captured(StreamKind stream, Event event) {
  if (!is_captured(event)) {
    if (const Mark* mark = find(event)) outer_[static_cast<std::size_t>(mark->stream)] = true;
    return;
  }
  const std::uint64_t number = event.id & ~kCaptured;
  if (number < captured_first_) return;  // of an earlier graph, which precedes this one
  const auto place = static_cast<std::size_t>(number - captured_first_);
  require(place < captured_.size(), "cuda",
          "an event that was never recorded, number {} of a capture", number);
  if (captured_[place] == stream) return;
  stream_wait(streams_[static_cast<std::size_t>(stream)], captured_handles_[place]);
  joined_[static_cast<std::size_t>(stream)] = true;
}

void EventRing::begin_capture() {
  const std::lock_guard lock(mutex_);
  capturing_ = true;
  joined_ = {};
  joined_[static_cast<std::size_t>(StreamKind::kCompute)] = true;
  // Graphs are launched on the compute stream; their work on these two must not overtake earlier
  // work there.
  outer_ = {};
  for (const StreamKind other : {StreamKind::kUpdate, StreamKind::kCommunication})
    outer_[static_cast<std::size_t>(other)] = true;
}

std::vector<StreamKind> EventRing::end_capture() noexcept {
  const std::lock_guard lock(mutex_);
  capturing_ = false;
  captured_first_ += captured_.size();
  captured_.clear();
  std::vector<StreamKind> outer;
  for (std::size_t s = 0; s < kStreamKinds; ++s) {
    if (outer_[s]) outer.push_back(static_cast<StreamKind>(s));
  }
  return outer;
}

void EventRing::launched(Event after) {
  const std::lock_guard lock(mutex_);
  last_launch_ = after;
}

const EventRing::Mark* EventRing::find(Event event) {
  if (is_captured(event)) {
    require(!capturing_, "cuda", "the host queries an event of the capture in progress");
    event = last_launch_;
  }
  require(event.id < next_, "cuda", "an event that was never recorded, number {}", event.id);
  return event.id < first_ ? nullptr : &at(event.id);
}

void EventRing::wait(StreamKind stream, Event event) {
  const std::lock_guard lock(mutex_);
  if (capturing_) return wait_captured(stream, event);
  const Mark* mark = find(event);
  if (mark && mark->stream != stream)
    stream_wait(streams_[static_cast<std::size_t>(stream)], mark->handle);
}

void EventRing::synchronize(Event event) {
  EventHandle handle = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const Mark* mark = find(event);
    if (!mark || event_done(mark->handle)) return;
    handle = mark->handle;
  }
  const TraceSpan span(kHostWait);
  // Only this thread records, so the handle does not change; others may query meanwhile
  host_wait(handle);
}

bool EventRing::done(Event event) {
  const std::lock_guard lock(mutex_);
  const Mark* mark = find(event);
  return !mark || event_done(mark->handle);
}

Staging::~Staging() {
  if (!memory_) return;
  for (const Slot& slot : slots_) destroy_event(slot.used);
  pinned_free(memory_);
}

void Staging::finish(Slot& slot) {
  if (!slot.to) return;
  copy_on_host(slot.to, slot.memory, slot.bytes);
  slot.to = nullptr;
}

/// The least recently used slot, once it is free.
Staging::Slot& Staging::next() {
  if (!memory_) {
    const std::size_t bytes = slot_bytes_ * slots_.size();
    memory_ = pinned_allocate(bytes);
    if (!memory_)
      fail(ExitCode::kMemory, "memory",
           "no page-locked memory on the host: {} bytes are needed; see ulimit -l", bytes);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].memory = static_cast<std::byte*>(memory_) + i * slot_bytes_;
      slots_[i].used = create_event();
    }
  }
  Slot& slot = slots_[turn_];
  turn_ = (turn_ + 1) % slots_.size();
  if (!event_done(slot.used)) {
    const TraceSpan span(kHostWait);
    host_wait(slot.used);
  }
  finish(slot);
  return slot;
}

void Staging::to_device(const void* from, std::byte* to, std::size_t bytes, StreamHandle stream) {
  const auto* source = static_cast<const std::byte*>(from);
  for (std::size_t begin = 0; begin < bytes; begin += slot_bytes_) {
    const std::size_t size = std::min(slot_bytes_, bytes - begin);
    Slot& slot = next();
    copy_on_host(slot.memory, source + begin, size);
    copy_async(to + begin, slot.memory, size, CopyKind::kHostToDevice, stream);
    record_event(slot.used, stream);
  }
}

void Staging::to_host(const std::byte* from, void* to, std::size_t bytes, StreamKind kind,
                      StreamHandle stream) {
  // All slots are used before the first is read; next() empties the oldest.
  Event last;
  for (std::size_t begin = 0; begin < bytes; begin += slot_bytes_) {
    last = to_host_later(from + begin, static_cast<std::byte*>(to) + begin,
                         std::min(slot_bytes_, bytes - begin), kind, stream);
  }
  events_.synchronize(last);
  finish(last);
}

Event Staging::to_host_later(const std::byte* from, void* to, std::size_t bytes, StreamKind kind,
                             StreamHandle stream) {
  Slot& slot = next();
  copy_async(slot.memory, from, bytes, CopyKind::kDeviceToHost, stream);
  record_event(slot.used, stream);
  slot.event = events_.record(kind);
  slot.to = to;
  slot.bytes = bytes;
  return slot.event;
}

void Staging::finish(Event event) {
  // Earlier copies may be on another stream; those are finished if done.
  for (Slot& slot : slots_) {
    if (slot.to && slot.event.id <= event.id &&
        (slot.event.id == event.id || events_.done(slot.event)))
      finish(slot);
  }
}

std::uint64_t Staging::copied_bytes() { return copied; }

void Staging::finish_all() {
  for (Slot& slot : slots_) finish(slot);
}

}  // namespace starling::cuda
