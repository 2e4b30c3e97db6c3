#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {
namespace {

std::atomic<std::uint64_t> allocations{0}, host_waits{0}, launches{0}, graph_launches{0};

constexpr std::size_t kSharedWithoutAsking = 48 << 10;

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  const bool memory = error == cudaErrorMemoryAllocation;
  fail(memory ? ExitCode::kMemory : ExitCode::kInternal, "cuda",
       "{}: {} ({}); an earlier kernel may be the cause", call, cudaGetErrorString(error),
       cudaGetErrorName(error));
}

/// Logs a failed release of memory: not fatal, but it may indicate an invalidated capture or an
/// earlier kernel's error. After a device error every call fails, so only the first is logged. At
/// process exit the driver may already be unloaded.
void warn_unless_freed(cudaError_t error, const char* call) noexcept {
  if (error == cudaSuccess || error == cudaErrorCudartUnloading) return;
  cudaGetLastError();
  static std::atomic_flag said;
  if (said.test_and_set()) return;
  try {
    log::warning("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error));
  } catch (...) {  // out of memory for the message
  }
}

cudaStream_t stream_of(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(EventHandle event) { return static_cast<cudaEvent_t>(event); }

struct StreamNames {
  std::mutex mutex;
  std::map<cudaStream_t, std::string> names;
};
StreamNames& stream_names() {
  static StreamNames one;
  return one;
}

struct Captured {
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  std::vector<cudaGraphNode_t> last;  ///< the nodes that the stream's next work would depend on
};
/// Id 0 if the stream does not capture.
Captured captured_by(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Captured result;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, &result.id, &result.graph, &nodes, &edges,
                               &count) != cudaSuccess ||
      status != cudaStreamCaptureStatusActive) {
    cudaGetLastError();  // cudaStreamEndCapture reports an invalid capture
    return {};
  }
  result.last.assign(nodes, nodes + count);
  return result;
}

/// Streams with captured work that the capturing stream has not waited for; the runtime's error
/// does not name them.
std::string unjoined_streams(cudaStream_t origin) {
  const Captured main = captured_by(origin);
  std::string names;
  if (main.id == 0) return names;
  const std::lock_guard lock(stream_names().mutex);
  for (const auto& [stream, name] : stream_names().names) {
    if (stream == origin) continue;
    const Captured other = captured_by(stream);
    if (other.id != main.id) continue;
    const bool loose = std::any_of(other.last.begin(), other.last.end(), [&](cudaGraphNode_t node) {
      std::size_t followers = 0;
      const cudaError_t error = cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &followers);
      // cudaErrorLossyQuery: a library's programmatic dependent launch follows
      if (error != cudaSuccess) cudaGetLastError();
      return error == cudaSuccess && followers == 0 &&
             std::find(main.last.begin(), main.last.end(), node) == main.last.end();
    });
    if (loose) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

}  // namespace

int device_count(std::string& why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  cudaGetLastError();  // clears the error, which is handled here
  if (error == cudaErrorNoDevice) return 0;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) {
    why =
        fmt::format("no NVIDIA driver is loaded on this host; install one for CUDA {}.{} or newer",
                    runtime / 1000, runtime % 1000 / 10);
  } else if (error == cudaErrorInsufficientDriver) {
    why = fmt::format(
        "the NVIDIA driver supports CUDA {}.{}, this program needs {}.{}; install a newer driver",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  } else {
    why = fmt::format("the NVIDIA driver gives no devices: {} ({})", cudaGetErrorString(error),
                      cudaGetErrorName(error));
  }
  return -1;
}

DeviceInfo device_info(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  DeviceInfo info;
  info.name = properties.name;
  info.number = device;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.total_memory = properties.totalGlobalMem;
  check(cudaDriverGetVersion(&info.driver_version), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&info.runtime_version), "cudaRuntimeGetVersion");
  return info;
}

void use_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

StreamHandle create_stream(const char* name, bool high_priority) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     high_priority ? greatest : least),
        "cudaStreamCreateWithPriority");
  const std::lock_guard lock(stream_names().mutex);
  stream_names().names[stream] = name;
  return stream;
}
void destroy_stream(StreamHandle stream) noexcept {
  {
    const std::lock_guard lock(stream_names().mutex);
    stream_names().names.erase(stream_of(stream));
  }
  cudaStreamDestroy(stream_of(stream));
}

EventHandle create_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}
void destroy_event(EventHandle event) noexcept {
  if (event) cudaEventDestroy(event_of(event));
}
void record_event(EventHandle event, StreamHandle stream) {
  check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
}
void stream_wait(StreamHandle stream, EventHandle event) {
  check(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "cudaStreamWaitEvent");
}
bool event_done(EventHandle event) {
  const cudaError_t error = cudaEventQuery(event_of(event));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // clears the error, so that later calls do not return it
    return false;
  }
  check(error, "cudaEventQuery");
  return true;
}
void host_wait(EventHandle event) {
  ++host_waits;
  check(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
}
void host_wait_stream(StreamHandle stream) {
  ++host_waits;
  check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
}

void* device_allocate(std::size_t bytes) {
  ++allocations;
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the pool may free memory and retry
    return nullptr;
  }
  check(error, "cudaMalloc");
  return memory;
}
void device_free(void* memory) noexcept { warn_unless_freed(cudaFree(memory), "cudaFree"); }
void* pinned_allocate(std::size_t bytes) {
  ++allocations;
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(error, "cudaHostAlloc");
  return memory;
}
void pinned_free(void* memory) noexcept { warn_unless_freed(cudaFreeHost(memory), "cudaFreeHost"); }

void copy_async(void* to, const void* from, std::size_t bytes, CopyKind kind, StreamHandle stream) {
  const cudaMemcpyKind direction = kind == CopyKind::kHostToDevice   ? cudaMemcpyHostToDevice
                                   : kind == CopyKind::kDeviceToHost ? cudaMemcpyDeviceToHost
                                                                     : cudaMemcpyDeviceToDevice;
  check(cudaMemcpyAsync(to, from, bytes, direction, stream_of(stream)), "cudaMemcpyAsync");
}
void set_async(void* memory, int byte, std::size_t bytes, StreamHandle stream) {
  check(cudaMemsetAsync(memory, byte, bytes, stream_of(stream)), "cudaMemsetAsync");
}

void launch_kernel(const void* kernel, Dim3 grid, Dim3 block, std::size_t shared_bytes,
                   StreamHandle stream, void** arguments, const char* label) {
  ++launches;
  if (shared_bytes > kSharedWithoutAsking) {
    static std::mutex mutex;
    // The attribute is per kernel, so it is only ever raised
    static std::map<const void*, std::size_t> allowed;
    const std::lock_guard lock(mutex);
    std::size_t& most = allowed[kernel];
    if (shared_bytes > most) {
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)),
            label);
      most = shared_bytes;
    }
  }
  check(cudaLaunchKernel(kernel, dim3(grid.x, grid.y, grid.z), dim3(block.x, block.y, block.z),
                         arguments, shared_bytes, stream_of(stream)),
        label);
}

int blocks_per_multiprocessor(const void* kernel, int threads, const char* label) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> known;
  const std::lock_guard lock(mutex);
  int& blocks = known[{kernel, threads}];
  if (blocks == 0) {
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0), label);
    blocks = std::max(blocks, 1);
  }
  return blocks;
}

void load_kernel(const void* kernel, const char* label) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), label);
}

RuntimeCounters runtime_counters() { return {allocations, host_waits, launches, graph_launches}; }

EventHandle create_timed_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return event;
}
double seconds_between(EventHandle begin, EventHandle end) {
  float milliseconds = 0.0f;
  check(cudaEventElapsedTime(&milliseconds, event_of(begin), event_of(end)),
        "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) / 1e3;
}

void begin_capture(StreamHandle stream) {
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}
GraphHandle end_capture(StreamHandle stream, bool own_priorities) {
  const std::string loose = unjoined_streams(stream_of(stream));
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream_of(stream), &graph);
  if (error != cudaSuccess) {
    cudaGetLastError();  // clears the error, which is handled here
    if (graph) cudaGraphDestroy(graph);
    fail(ExitCode::kInternal, "cuda", "cudaStreamEndCapture: {} ({}){}{}",
         cudaGetErrorString(error), cudaGetErrorName(error),
         loose.empty() ? "" : "; the capturing stream has not waited for the work of stream ",
         loose);
  }
  cudaGraphExec_t ready = nullptr;
  const cudaError_t made = cudaGraphInstantiate(
      &ready, graph, own_priorities ? cudaGraphInstantiateFlagUseNodePriority : 0);
  cudaGraphDestroy(graph);
  check(made, "cudaGraphInstantiate");
  return ready;
}
void check_capturing(StreamHandle stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_of(stream), &status), "cudaStreamIsCapturing");
  if (status == cudaStreamCaptureStatusActive) return;
  fail(ExitCode::kInternal, "cuda", "the capture {}",
       status == cudaStreamCaptureStatusInvalidated
           ? "was spoilt by an earlier call that a capture does not allow"
           : "does not reach this stream");
}
void abandon_capture(StreamHandle stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream_of(stream), &status) == cudaSuccess &&
      status == cudaStreamCaptureStatusNone)
    return;
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream_of(stream), &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();  // the call that invalidated the capture has reported the reason
}
void launch_graph(GraphHandle graph, StreamHandle stream) {
  ++graph_launches;
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "cudaGraphLaunch");
}
void destroy_graph(GraphHandle graph) noexcept {
  if (graph) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

RelaxedCapture::RelaxedCapture() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  before_ = static_cast<int>(mode);
}
RelaxedCapture::~RelaxedCapture() {
  auto mode = static_cast<cudaStreamCaptureMode>(before_);
  cudaThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace starling::cuda
