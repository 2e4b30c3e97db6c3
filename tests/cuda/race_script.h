#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/fakes/cuda/race_checker.h"
#include "tests/fakes/cuda/recorder.h"

namespace starling::tests {

/// A record of calls, written by hand: three streams of one thread, events, 4096 bytes of device
/// memory.
class RaceScript {
 public:
  using Call = cuda::shim::Call;
  using CallKind = cuda::shim::CallKind;

  explicit RaceScript(std::uint32_t thread = 1) : thread_(thread) {
    compute = stream("compute");
    update = stream("update");
    communication = stream("communication");
  }

  cuda::StreamHandle compute = nullptr, update = nullptr, communication = nullptr;
  std::vector<Call> calls;

  std::byte* memory(std::size_t at = 0) { return &memory_[at]; }

  cuda::EventHandle event() {
    const cuda::EventHandle result = &handles_.at(next_++);
    add({.kind = CallKind::kCreateEvent, .event = result});
    return result;
  }
  void record(cuda::EventHandle event, cuda::StreamHandle on) {
    add({.kind = CallKind::kRecord,
         .stream = on,
         .event = event,
         .recording = ++recordings_[event]});
  }
  void wait(cuda::StreamHandle stream, cuda::EventHandle event) {
    add({.kind = CallKind::kWait,
         .stream = stream,
         .event = event,
         .recording = recordings_[event]});
  }
  void host_wait(cuda::EventHandle event) {
    add({.kind = CallKind::kHostWait, .event = event, .recording = recordings_[event]});
  }
  void done(cuda::EventHandle event) {
    add({.kind = CallKind::kDone, .event = event, .recording = recordings_[event]});
  }
  /// The second stream waits for what the first holds.
  void join(cuda::StreamHandle first, cuda::StreamHandle second) {
    const cuda::EventHandle mark = event();
    record(mark, first);
    wait(second, mark);
  }
  void read(cuda::StreamHandle on, const std::string& label, std::size_t at, std::size_t bytes) {
    add({.kind = CallKind::kRead,
         .stream = on,
         .label = label,
         .from = memory(at),
         .bytes = bytes});
  }
  void write(cuda::StreamHandle on, const std::string& label, std::size_t at, std::size_t bytes) {
    add({.kind = CallKind::kWrite, .stream = on, .label = label, .to = memory(at), .bytes = bytes});
  }
  void take(cuda::StreamHandle on, std::size_t at, std::size_t bytes) {
    add({.kind = CallKind::kTake, .stream = on, .to = memory(at), .bytes = bytes});
  }
  void give_back(cuda::StreamHandle on, std::size_t at, std::size_t bytes) {
    add({.kind = CallKind::kGiveBack, .stream = on, .to = memory(at), .bytes = bytes});
  }
  void copy(cuda::StreamHandle on, const void* from, void* to, std::size_t bytes,
            cuda::CopyKind kind) {
    add({.kind = CallKind::kCopy,
         .stream = on,
         .from = from,
         .to = to,
         .bytes = bytes,
         .copy = kind});
  }

  // Graphs.
  void begin_capture(cuda::StreamHandle on) {
    add({.kind = CallKind::kBeginCapture, .stream = on});
  }
  void end_capture(cuda::StreamHandle on, cuda::GraphHandle graph) {
    add({.kind = CallKind::kEndCapture, .stream = on, .graph = graph});
  }
  void launch(cuda::StreamHandle on, cuda::GraphHandle graph) {
    add({.kind = CallKind::kLaunchGraph, .stream = on, .graph = graph});
  }

  // NCCL.
  void init(int communicator, int rank) {
    add({.kind = CallKind::kNcclInit, .communicator = communicator, .peer = rank});
  }
  void split(int communicator, int parent, int rank) {
    add({.kind = CallKind::kNcclSplit,
         .communicator = communicator,
         .parent = parent,
         .peer = rank});
  }
  void group(bool start) {
    add({.kind = start ? CallKind::kNcclGroupStart : CallKind::kNcclGroupEnd});
  }
  void send(int communicator, int peer, std::size_t at, std::size_t bytes) {
    add({.kind = CallKind::kNcclSend,
         .stream = communication,
         .from = memory(at),
         .bytes = bytes,
         .communicator = communicator,
         .peer = peer});
  }
  void receive(int communicator, int peer, std::size_t at, std::size_t bytes) {
    add({.kind = CallKind::kNcclReceive,
         .stream = communication,
         .to = memory(at),
         .bytes = bytes,
         .communicator = communicator,
         .peer = peer});
  }
  void all_reduce(int communicator, std::size_t from, std::size_t to, std::size_t bytes,
                  cuda::StreamHandle on = nullptr) {
    add({.kind = CallKind::kNcclCollective,
         .stream = on ? on : communication,
         .label = "all_reduce",
         .from = memory(from),
         .to = memory(to),
         .bytes = bytes,
         .communicator = communicator,
         .bytes_to = bytes});
  }

 private:
  void add(Call call) {
    call.thread = thread_;
    calls.push_back(std::move(call));
  }
  cuda::StreamHandle stream(const char* name) {
    const cuda::StreamHandle result = &handles_.at(next_++);
    add({.kind = CallKind::kCreateStream, .stream = result, .label = name});
    return result;
  }

  std::uint32_t thread_;
  std::array<std::byte, 4096> memory_{};
  std::array<char, 64> handles_{};
  std::size_t next_ = 0;
  std::map<cuda::EventHandle, std::uint64_t> recordings_;
};

}  // namespace starling::tests
