#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// The calls of the CUDA runtime that the backend makes, and no others. runtime_cuda.cpp implements them with the runtime;
// shim/runtime_fake.cpp on host memory, in issue order, with a record of every call (shim/recorder.h) that tests walk. Errors are
// Error(kMemory) where memory ends, otherwise Error(kInternal) with the runtime's own message; an earlier kernel's error says so.
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

/// Number of visible devices; -1 with the reason and the remedy in `why` where there is no (usable) driver.
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

/// Memory from the driver, for the pool alone (kernels/cuda/pool.h). Null where there is not enough.
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
/// Starts `kernel` with pointers to its arguments, as cudaLaunchKernel; see launch.h. `label` names it in errors.
void launch_kernel(const void* kernel, Dim3 grid, Dim3 block, std::size_t shared_bytes, StreamHandle stream, void** arguments,
                   const char* label);

/// Counts of this process since it started, for tests and reports of the steady state.
struct RuntimeCounters {
  std::uint64_t device_allocations = 0;  ///< calls of device_allocate and pinned_allocate
  std::uint64_t host_waits = 0;          ///< host_wait, host_wait_stream
  std::uint64_t launches = 0;
};
RuntimeCounters runtime_counters();

}  // namespace starling::cuda
