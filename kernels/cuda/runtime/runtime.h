#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// The calls of the CUDA runtime that the backend makes, and no others. runtime_cuda.cpp implements
// them with the runtime; tests/fakes/cuda/runtime_fake.cpp on host memory, in issue order, with a
// record of every call (recorder.h there) that tests walk. Errors are Error(kMemory) where memory
// ends, otherwise Error(kInternal) with the runtime's own message; an earlier kernel's error says
// so. What lives here: the device itself. Runtime is all that the plug-in asks of CUDA;
// runtime_cuda*.cpp ask CUDA, tests' fakes answer in its place. pool: memory in the order of
// streams. staging: page-locked memory. graph: steps that are captured. handshake, peer: counters
// in device memory that streams set and await. launch: how a kernel is started. nvtx: names for
// profilers.

namespace starling::cuda {

using StreamHandle = void*;  ///< cudaStream_t
using EventHandle = void*;   ///< cudaEvent_t

struct DeviceInfo {
  std::string name;
  int number = 0;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::size_t total_memory = 0;
  int driver_version = 0, runtime_version = 0;  ///< 13000 for 13.0
};

/// Number of visible devices; -1 with the reason and the remedy in `why` where there is no (usable)
/// driver.
int device_count(std::string& why);
DeviceInfo device_info(int device);
/// Makes it the calling thread's.
void use_device(int device);
std::size_t free_memory();

StreamHandle create_stream(const char* name, bool high_priority);
void destroy_stream(StreamHandle stream) noexcept;
EventHandle create_event();
void destroy_event(EventHandle event) noexcept;
void record_event(EventHandle event, StreamHandle stream);
void stream_wait(StreamHandle stream, EventHandle event);  ///< the stream waits, the host does not
bool event_done(EventHandle event);
void host_wait(EventHandle event);
void host_wait_stream(StreamHandle stream);

/// Memory from the driver, for the pool alone (kernels/cuda/runtime/pool.h). Null where there is
/// not enough.
void* device_allocate(std::size_t bytes);
void device_free(void* memory) noexcept;
void* pinned_allocate(std::size_t bytes);
void pinned_free(void* memory) noexcept;

enum class CopyKind { kHostToDevice, kDeviceToHost, kDeviceToDevice };
/// Host memory must be pinned for the copy not to wait.
void copy_async(void* to, const void* from, std::size_t bytes, CopyKind kind, StreamHandle stream);
void set_async(void* memory, int byte, std::size_t bytes, StreamHandle stream);

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
/// Starts `kernel` with pointers to its arguments, as cudaLaunchKernel; see launch.h. `label` names
/// it in errors.
void launch_kernel(const void* kernel, Dim3 grid, Dim3 block, std::size_t shared_bytes,
                   StreamHandle stream, void** arguments, const char* label);
/// See resident_blocks() in launch.h; the runtime is asked once for each kernel.
int blocks_per_multiprocessor(const void* kernel, int threads, const char* label);
/// Brings the kernel to the device now. Where it is first launched it comes then, for which the
/// driver may wait for all that runs, and so for a kernel that waits for another rank.
void load_kernel(const void* kernel, const char* label);

/// Counts of this process since it started, for tests and reports of the steady state.
struct RuntimeCounters {
  std::uint64_t device_allocations = 0;  ///< calls of device_allocate and pinned_allocate
  std::uint64_t host_waits = 0;          ///< host_wait, host_wait_stream
  std::uint64_t launches = 0;
  std::uint64_t graph_launches = 0;
};
RuntimeCounters runtime_counters();

/// Makes an event whose time can be asked, as that of no other can; destroy_event() is for both
/// kinds.
EventHandle create_timed_event();
/// Seconds from when the device came to one event to when it came to the other; both must be done.
double seconds_between(EventHandle begin, EventHandle end);

using GraphHandle = void*;  ///< cudaGraphExec_t

/// Begins a capture: from now on what is issued to the stream is kept, not done. So it is on every
/// stream that waits for an event recorded on one that captures. The calling thread must not wait,
/// ask for an event or ask the driver for memory until the end: such a call is an error, and spoils
/// the capture. One capture a thread at a time.
void begin_capture(StreamHandle stream);
/// Ends what begin_capture(stream) began and makes it ready to run. The stream must have waited for
/// all that other streams captured; otherwise the error names one that it has not. After an error,
/// too, no stream captures any more. With `own_priorities` a kernel runs with the priority of the
/// stream that it was captured on, otherwise with that of the stream of the launch.
GraphHandle end_capture(StreamHandle stream, bool own_priorities);
/// Error(kInternal) unless the stream takes part in a capture that nothing has spoilt. For work
/// that is handed to a library, whose own errors of a spoilt capture cannot be told from others.
void check_capturing(StreamHandle stream);
/// Drops what has been captured; harmless where nothing captures.
void abandon_capture(StreamHandle stream) noexcept;
/// Does the captured work, with the addresses and values of then, in the stream's order.
void launch_graph(GraphHandle graph, StreamHandle stream);
void destroy_graph(GraphHandle graph) noexcept;

// Device memory that other processes of this host map: runtime_cuda_shareable.cpp; in tests
// peer_fake.cpp.

/// Name of a device, the same in all processes.
std::string device_uuid(int device);
/// Why a device's memory cannot go to other processes; empty where it can.
std::string why_not_shareable(int device);
/// Why a device cannot read and write memory of the device of that number; empty where it can.
std::string why_not_reachable(int device, const std::string& uuid);
/// Memory of undefined content, and the file by which other processes map it, which the caller
/// closes.
void* shareable_allocate(int device, std::size_t bytes, int& descriptor);
/// Another process's memory, for this device to read and write. `bytes` as at its allocation.
void* shareable_map(int device, int descriptor, std::size_t bytes);
/// Undoes either; what processes have mapped stays with them.
void shareable_free(int device, void* memory, std::size_t bytes) noexcept;

/// While it lives, the calling thread may ask the driver for memory though it captures.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int before_ = 0;
};

}  // namespace starling::cuda
