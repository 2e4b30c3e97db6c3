#include "kernels/cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace starling::cuda {

EventRing::EventRing(const Streams& streams) : streams_(streams) {
  for (std::size_t i = 0; i < kHandles; ++i) free_.push_back(create_event());
}

EventRing::~EventRing() {
  for (const Mark& mark : marks_) destroy_event(mark.handle);
  for (const EventHandle handle : free_) destroy_event(handle);
}

Event EventRing::record(StreamKind stream) {
  if (free_.empty()) {
    for (; !marks_.empty() && event_done(marks_.front().handle); ++first_) {
      free_.push_back(marks_.front().handle);
      marks_.pop_front();
    }
    if (free_.empty()) free_.push_back(create_event());
  }
  record_event(free_.back(), streams_[static_cast<std::size_t>(stream)]);
  marks_.push_back({free_.back(), stream});
  free_.pop_back();
  return {first_ + marks_.size() - 1};
}

const EventRing::Mark* EventRing::find(Event event) const {
  require(event.id < first_ + marks_.size(), "cuda", "an event that was never recorded, number {}", event.id);
  return event.id < first_ ? nullptr : &marks_[event.id - first_];
}

void EventRing::wait(StreamKind stream, Event event) {
  const Mark* mark = find(event);
  if (mark && mark->stream != stream) stream_wait(streams_[static_cast<std::size_t>(stream)], mark->handle);
}

void EventRing::synchronize(Event event) {
  if (!done(event)) host_wait(find(event)->handle);
}

bool EventRing::done(Event event) {
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
  std::memcpy(slot.to, slot.memory, slot.bytes);
  slot.to = nullptr;
}

/// The slot that was used the longest ago, once it is free.
Staging::Slot& Staging::next() {
  if (!memory_) {
    const std::size_t bytes = slot_bytes_ * slots_.size();
    memory_ = pinned_allocate(bytes);
    if (!memory_) fail(ExitCode::kMemory, "memory", "no page-locked memory on the host: {} bytes are needed; see ulimit -l", bytes);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].memory = static_cast<std::byte*>(memory_) + i * slot_bytes_;
      slots_[i].used = create_event();
    }
  }
  Slot& slot = slots_[turn_];
  turn_ = (turn_ + 1) % slots_.size();
  if (!event_done(slot.used)) host_wait(slot.used);
  finish(slot);
  return slot;
}

void Staging::to_device(const void* from, std::byte* to, std::size_t bytes, StreamHandle stream) {
  const auto* source = static_cast<const std::byte*>(from);
  for (std::size_t begin = 0; begin < bytes; begin += slot_bytes_) {
    const std::size_t size = std::min(slot_bytes_, bytes - begin);
    Slot& slot = next();
    std::memcpy(slot.memory, source + begin, size);
    copy_async(to + begin, slot.memory, size, CopyKind::kHostToDevice, stream);
    record_event(slot.used, stream);
  }
}

void Staging::to_host(const std::byte* from, void* to, std::size_t bytes, StreamKind kind, StreamHandle stream) {
  // All slots are in flight before the first is read; next() empties the oldest.
  Event last;
  for (std::size_t begin = 0; begin < bytes; begin += slot_bytes_) {
    last = to_host_later(from + begin, static_cast<std::byte*>(to) + begin, std::min(slot_bytes_, bytes - begin), kind, stream);
  }
  events_.synchronize(last);
  finish(last);
}

Event Staging::to_host_later(const std::byte* from, void* to, std::size_t bytes, StreamKind kind, StreamHandle stream) {
  Slot& slot = next();
  copy_async(slot.memory, from, bytes, CopyKind::kDeviceToHost, stream);
  record_event(slot.used, stream);
  slot.event = events_.record(kind);
  slot.to = to;
  slot.bytes = bytes;
  return slot.event;
}

void Staging::finish(Event event) {
  // Earlier copies may be another stream's; theirs are finished when they are done.
  for (Slot& slot : slots_) {
    if (slot.to && slot.event.id <= event.id && (slot.event.id == event.id || events_.done(slot.event))) finish(slot);
  }
}

void Staging::finish_all() {
  for (Slot& slot : slots_) finish(slot);
}

}  // namespace starling::cuda
