#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"

// A record of what the fake runtime (runtime_fake.cpp) has been asked to do, in issue order, and
// the devices that it pretends to have.
namespace starling::cuda::shim {

enum class CallKind : std::uint8_t {
  kCreateStream,
  kCreateEvent,
  kRecord,    ///< of `event` on `stream`
  kWait,      ///< `stream` for `event`
  kHostWait,  ///< for `event`, or for all of `stream`
  kLaunch,    ///< `label`: the function that called launch()
  kCopy,      ///< `bytes` from `from` to `to` on `stream`
  kSet,       ///< `bytes` at `to`
  kAllocate,  ///< `bytes` at `to`; label "device" or "pinned"
  kFree,      ///< at `to`
  kMark,      ///< no call: `label` as note_mark() was given it
  kDone,      ///< a question whether `event` is done that was answered with yes
  // What no call of the runtime tells; race_checker.h walks it with the calls.
  /// The operation `label`, issued to `stream` (null: the host), reads `bytes` at `from`
  kRead,
  kWrite,     ///< the same, writes `bytes` at `to`
  kTake,      ///< the pool gives out `bytes` at `to`, for work on `stream`
  kGiveBack,  ///< the pool gets `bytes` at `to` back, which it gives out again for work on `stream`
  // NCCL.
  kNcclInit,  ///< rank `peer` of a new communicator
  /// Rank `peer` of a new communicator made from `parent`; `communicator` 0: it joins none
  kNcclSplit,
  kNcclGroupStart,  ///< what comes until kNcclGroupEnd is issued together, in no order
  kNcclGroupEnd,
  kNcclSend,     ///< `bytes` at `from` to rank `peer` of `communicator`
  kNcclReceive,  ///< `bytes` at `to` from rank `peer` of `communicator`
  /// `label`: all_reduce, reduce_scatter, all_gather; `bytes` at `from`, `bytes_to` at `to`
  kNcclCollective,
  kNcclDestroy,  ///< `label`: destroy, abort
  // Graphs. What a thread issues between the two is captured, not done, to the streams that
  // capture.
  kBeginCapture,  ///< on `stream`
  kEndCapture,    ///< on `stream`; `graph`, null where the capture failed
  kLaunchGraph,   ///< `graph` on `stream`; what it does is between its capture's two calls
  kDestroyGraph,
  // Counters that ranks share (core/peer_memory.h), in the order in which they are done: a wait
  // stands behind the signal that ends it.
  kSignal,  ///< the counter at `to` comes to `recording`, on `stream`
  kAwait,   ///< `stream` waits until the counter at `from` has come to `recording`
};

struct Call {
  CallKind kind;
  StreamHandle stream = nullptr;
  EventHandle event = nullptr;
  std::string label = {};  ///< a stream's name, a kernel's operation, a kind of memory
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
  CopyKind copy = CopyKind::kDeviceToDevice;
  bool high_priority = false;
  /// kRecord: the how-manieth of this event; kWait, kHostWait: the one waited for (0: it was never
  /// recorded)
  std::uint64_t recording = 0;
  /// The thread that called: threads are numbered from 1 as they make their first call
  std::uint32_t thread = 0;
  int communicator = 0, parent = 0;  ///< NCCL's; from 1, the same number on all its ranks
  int peer = -1;
  std::size_t bytes_to = 0;
  GraphHandle graph = nullptr;
  /// kEndCapture: kernels keep the priorities of the streams that they were captured on
  bool own_priorities = false;
};

/// Everything since the start or the last clear(), while recording; off by default. Not for use
/// while another thread issues work. With `answers`, kDone too.
void start_recording(bool answers = false);
std::vector<Call> stop_recording();
template <class Work>
std::vector<Call> recorded(const Work& work) {
  start_recording();
  work();
  return stop_recording();
}
/// Launches by functions whose name has this part.
inline int launches(const std::vector<Call>& calls, const std::string& part) {
  return static_cast<int>(std::count_if(calls.begin(), calls.end(), [&](const Call& call) {
    return call.kind == CallKind::kLaunch && call.label.find(part) != std::string::npos;
  }));
}
/// While held, what is recorded from then on is done only once the host has waited for it or for
/// something issued later: as if the device, which works in issue order, did nothing until somebody
/// waits.
void hold_events(bool held);
/// While held: the device comes `count` recordings further.
void let_events(std::uint64_t count);
/// Recordings so far, and while held: the device comes to the one of this number.
std::uint64_t recordings();
void let_events_to(std::uint64_t recording);
/// Holds a stream: from now on it is stuck, as behind a transfer whose other end is gone. Nothing
/// issued to it is done, nor what other streams do behind an event of its, until release_stream().
/// A host that waits for such an event waits (20 s at most, then it is an error).
void hold_stream(StreamHandle stream);
void release_stream(StreamHandle stream);
/// While set: work is recorded, not done, and copies to the host bring zeros. So a test counts what
/// a large model issues, at the price of the issue alone; device memory is never touched.
void skip_work(bool skipped);
/// Something of a test's own, in its place among the calls.
void note_mark(const std::string& label);
/// Notes what the runtime is not asked for: accesses, the pool's blocks, NCCL's calls.
void note(Call call);
void note_launch(StreamHandle stream, const char* label);
/// Whether the stream captures, or work is skipped; then work on it is to be handed to keep_work()
/// in place of being done, with its arguments by value.
bool captures(StreamHandle stream);
/// Why what the stream captures will come to nothing; empty where it will not.
std::string spoilt(StreamHandle stream);
void keep_work(StreamHandle stream, std::function<void()> work);
/// Whether the calling thread has a capture under way that forbids it to ask the driver for
/// anything.
bool forbids_driver();
/// While kept work is carried out: the stream that the graph was launched on; otherwise null.
StreamHandle launching();

/// The machine that the fake runtime is; what is left unset is one H200. Set back with
/// FakeMachine{}.
struct FakeMachine {
  std::vector<DeviceInfo> devices = {
      {"NVIDIA H200", 0, 9, 0, 132, std::size_t{141} << 30, 13000, 13000}};
  std::string no_driver;  ///< not empty: why device_count() says -1
  /// device_allocate answers null beyond this many bytes in all; 0: beyond what the first device
  /// says
  std::size_t memory = 0;
  std::size_t pinned = 0;  ///< not 0: pinned_allocate answers null for more bytes than this
};
void set_machine(const FakeMachine& machine);

}  // namespace starling::cuda::shim
