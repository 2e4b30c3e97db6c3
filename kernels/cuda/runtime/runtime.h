#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// This folder: the device itself. This header declares all CUDA runtime calls that the backend
// makes. runtime_cuda*.cpp implement them with CUDA; tests/fakes/cuda/runtime_fake.cpp on host
// memory, in issue order, recording every call for tests (recorder.h there). Errors are
// Error(kMemory) if memory is exhausted, otherwise Error(kInternal) with the runtime's message,
// which says if it is an earlier kernel's error.
// Other files here: pool, device memory by stream order; staging, page-locked memory; graph,
// captured steps; handshake and peer, counters in device memory that streams set and wait for;
// launch, starting kernels; nvtx, names for profilers.

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

/// Number of visible devices; -1 if there is no usable driver, with the reason and remedy in `why`.
int device_count(std::string& why);
DeviceInfo device_info(int device);
/// Makes it the calling thread's current device.
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

/// Allocates from the driver; only for the pool (kernels/cuda/runtime/pool.h). Null if there is not
/// enough memory.
void* device_allocate(std::size_t bytes);
void device_free(void* memory) noexcept;
void* pinned_allocate(std::size_t bytes);
void pinned_free(void* memory) noexcept;

enum class CopyKind { kHostToDevice, kDeviceToHost, kDeviceToDevice };
/// Host memory must be pinned for the copy to be asynchronous.
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
/// Loads the kernel to the device now. Otherwise that happens at its first launch, where the driver
/// may wait for all running work, even for a kernel that waits for another rank.
void load_kernel(const void* kernel, const char* label);

/// Counters of this process, for tests and reports.
struct RuntimeCounters {
  std::uint64_t device_allocations = 0;  ///< calls of device_allocate and pinned_allocate
  std::uint64_t host_waits = 0;          ///< host_wait, host_wait_stream
  std::uint64_t launches = 0;
  std::uint64_t graph_launches = 0;
};
RuntimeCounters runtime_counters();

/// Creates an event that records its time, which other events do not. destroy_event() is for both
/// kinds.
EventHandle create_timed_event();
/// Seconds between the completion of two events, both of which must be done.
double seconds_between(EventHandle begin, EventHandle end);

using GraphHandle = void*;  ///< cudaGraphExec_t

/// Starts a capture: work issued to the stream is recorded instead of executed, and so is work on
/// streams that wait for an event recorded on a capturing stream. Until the end, the calling thread
/// must not wait, query events or allocate from the driver; such a call is an error and invalidates
/// the capture. One capture per thread at a time.
void begin_capture(StreamHandle stream);
/// Ends the capture and instantiates the graph. The stream must have waited for all captured work
/// of other streams; otherwise the error names one of them. No stream captures afterwards, even
/// after an error. With `own_priorities` kernels run with the priority of the stream that they were
/// captured on, otherwise of the stream of the launch.
GraphHandle end_capture(StreamHandle stream, bool own_priorities);
/// Error(kInternal) unless the stream takes part in a valid capture. Called before work is given to
/// a library, whose error for an invalid capture looks like any other.
void check_capturing(StreamHandle stream);
/// Discards a capture, if there is one.
void abandon_capture(StreamHandle stream) noexcept;
/// Executes the captured work, with the captured addresses and values, in the stream's order.
void launch_graph(GraphHandle graph, StreamHandle stream);
void destroy_graph(GraphHandle graph) noexcept;

// Device memory that other processes of this host map: runtime_cuda_shareable.cpp; in tests
// peer_fake.cpp.

/// Name of a device, the same in all processes.
std::string device_uuid(int device);
/// Why a device's memory cannot be shared with other processes; empty if it can.
std::string why_not_shareable(int device);
/// Why `device` cannot access memory of the device with this uuid; empty if it can.
std::string why_not_reachable(int device, const std::string& uuid);
/// Allocates uninitialised memory, and a file descriptor by which other processes map it; the
/// caller closes it.
void* shareable_allocate(int device, std::size_t bytes, int& descriptor);
/// Maps another process's memory for this device. `bytes` as in its allocation.
void* shareable_map(int device, int descriptor, std::size_t bytes);
/// Frees or unmaps memory; other processes' mappings stay valid.
void shareable_free(int device, void* memory, std::size_t bytes) noexcept;

/// While this object exists, the calling thread may allocate from the driver during a capture.
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
