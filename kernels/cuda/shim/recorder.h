#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/runtime.h"

// What the fake runtime (runtime_fake.cpp) has been asked to do, in issue order, and the devices that it pretends to have.
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
  std::uint64_t recording = 0;  ///< kRecord: the how-manieth of this event; kWait, kHostWait: the one waited for (0: it was never recorded)
};

/// Everything since the start or the last clear(), while recording; off by default. Not for use while another thread issues work.
void start_recording();
std::vector<Call> stop_recording();
/// While held, what is recorded from then on is done only once the host has waited for it or for something issued later: as if the device,
/// which works in issue order, did nothing until somebody waits.
void hold_events(bool held);
/// Something of a test's own, in its place among the calls.
void note_mark(const std::string& label);
void note_launch(StreamHandle stream, const char* label);

/// The machine that the fake runtime is; what is left unset is one H200. Set back with FakeMachine{}.
struct FakeMachine {
  std::vector<DeviceInfo> devices = {{"NVIDIA H200", 0, 9, 0, 132, std::size_t{141} << 30, 13000, 13000}};
  std::string no_driver;   ///< not empty: why device_count() says -1
  std::size_t memory = 0;  ///< not 0: device_allocate answers null beyond this many bytes in all
};
void set_machine(const FakeMachine& machine);

}  // namespace starling::cuda::shim
