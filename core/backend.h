#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/device_clock.h"
#include "core/operations/list.h"
#include "core/tensor.h"

namespace starling {

/// The streams of a device, in the sense of CUDA: work on one stream runs in issue order, work on
/// two streams runs concurrently unless an event orders it. A CPU backend runs everything at once,
/// in issue order.
enum class StreamKind : std::uint8_t { kCompute, kUpdate, kCommunication, kUpload };
inline constexpr std::size_t kStreamKinds = 4;

/// Marks a point in a stream's work; see Backend::record and Backend::wait.
struct Event {
  std::uint64_t id = 0;
};

struct MemoryStats {
  /// Requests that had to go to the operating system or driver
  std::uint64_t system_allocations = 0;
  std::uint64_t allocations = 0;  ///< all requests
  std::size_t in_use = 0;         ///< bytes held by live storages
  std::size_t reserved = 0;       ///< bytes held from the operating system or driver
  std::size_t peak_in_use = 0;
};

class PeerMemory;

/// The values that change between launches of a captured graph.
struct StepValues {
  std::int64_t pass = 0;  ///< t: updates done before this step
  double lr = 0.0;
  std::int64_t step = 1;              ///< the optimizer's
  double loss_scale = 1.0;            ///< fp16's, a power of two
  std::uint64_t dropout_counter = 0;  ///< the pass's at its start
};

/// Captured work that can be launched repeatedly, on kCompute. It accesses the memory of the
/// tensors used in the capture, which the owner must keep alive. Must not outlive its backend.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  /// Does not wait or allocate. `values` replace those passed to begin_capture().
  virtual void launch(const StepValues& values) = 0;
};

/// A device: memory, streams and operations. Work is issued to the current stream of the calling
/// thread's StreamScope, and calls may return before it is done; synchronize() waits.
/// Implementations: kernels/cpu, kernels/cuda, and MetaBackend for shapes without data. One thread
/// issues work; only allocate() and the release of storages are thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual DeviceType device() const = 0;
  virtual std::string description() const = 0;  ///< e.g. the processor's name and instruction set

  // Memory. Throws Error(kMemory) that names needed and available bytes.
  virtual std::shared_ptr<Storage> allocate(std::size_t bytes) = 0;
  virtual MemoryStats memory_stats() const = 0;
  /// Same dtype and element count, this device
  virtual void copy(const Tensor& from, const Tensor& to) = 0;
  virtual void copy_from_host(const void* from, const Tensor& to) = 0;
  virtual void copy_to_host(const Tensor& from, void* to) = 0;  ///< waits
  /// copy_to_host() without waiting: `to` is valid after synchronize(event), and must live until
  /// then. At most 64 KiB.
  virtual Event copy_to_host_later(const Tensor& from, void* to) = 0;
  virtual void fill(const Tensor& x, double value) = 0;
  /// Page-locked host memory, which a device can access by DMA. Error(kMemory) on failure.
  virtual std::shared_ptr<std::byte> allocate_host(std::size_t bytes);
  /// Asynchronous copies between the device and memory of allocate_host(), on the current stream.
  /// The host must not access the memory until an event recorded afterwards is done.
  virtual void copy_to_pinned(const Tensor& from, std::byte* to) { copy_to_host(from, to); }
  virtual void copy_from_pinned(const std::byte* from, const Tensor& to) {
    copy_from_host(from, to);
  }

  // Streams and events.
  virtual void set_stream(StreamKind stream) = 0;
  virtual StreamKind stream() const = 0;
  virtual Event record() = 0;                 ///< marks the current stream's work so far
  virtual void wait(Event event) = 0;         ///< the current stream waits; the host does not
  virtual void synchronize(Event event) = 0;  ///< the host waits
  /// Whether the work before the event is done. Thread-safe
  virtual bool done(Event) { return true; }
  /// The current stream's handle for libraries (cudaStream_t); null on synchronous backends. Throws
  /// Error(kInternal) if the current capture is invalid, since a library's own error would be
  /// vague.
  virtual void* native_stream() const { return nullptr; }
  virtual void synchronize() = 0;  ///< the host waits for everything

  /// Records work instead of executing it, until end_capture(). Returns false if the backend has no
  /// graphs. Called on kCompute; other streams join by waiting for an event recorded in the
  /// capture, and kCompute must finally wait for them. Operations are called with the `values` of
  /// this step (updates with its lr and step; gradient_scale, loss and gradient_control with
  /// factors of its loss_scale; dropout with counters from its dropout_counter on), and use those
  /// of each launch later. The host must not wait or copy; optimizer rules must live as long as the
  /// graph. A launch runs after all work on kCompute, kUpdate and kCommunication, and after that on
  /// kUpload if the capture waits for an event of it that was recorded before the capture.
  virtual bool begin_capture(const StepValues& values) { return (void)values, false; }
  /// Ends the capture. Throws Error(kInternal) if it failed.
  virtual std::unique_ptr<DeviceGraph> end_capture() { return nullptr; }
  /// Ends a capture after an error and discards it.
  virtual void abandon_capture() noexcept {}
  virtual bool capturing() const { return false; }

  /// The device's clock, for --trace; null on synchronous backends.
  virtual std::unique_ptr<DeviceClock> device_clock() { return nullptr; }
  /// Memory shared by ranks of one host (core/peer_memory.h); null if not supported.
  virtual PeerMemory* peer_memory() { return nullptr; }

  // Operations (core/operations/list.h): backend.matmul({.a = …}) and so on, whose arguments are
  // structs of the header of their family. Arguments that do not fit each other are an
  // Error(kInternal).
#define STARLING_DECLARE_OPERATION(Arguments, name) \
  void name(const Arguments& args) {                \
    check(args);                                    \
    issue(args);                                    \
  }
  STARLING_OPERATIONS(STARLING_DECLARE_OPERATION)
#undef STARLING_DECLARE_OPERATION

 protected:
  // Issues an operation whose arguments fit each other. One that a backend does not override is an
  // Error(kUsage) that names both.
#define STARLING_DECLARE_ISSUE(Arguments, name) \
  virtual void issue(const Arguments&) { lacks(#name); }
  STARLING_OPERATIONS(STARLING_DECLARE_ISSUE)
#undef STARLING_DECLARE_ISSUE

 private:
  [[noreturn]] void lacks(std::string_view operation) const;
};

/// Issues the enclosed calls to another stream.
class StreamScope {
 public:
  StreamScope(Backend& backend, StreamKind stream) : backend_(backend), before_(backend.stream()) {
    backend.set_stream(stream);
  }
  ~StreamScope() { backend_.set_stream(before_); }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Backend& backend_;
  StreamKind before_;
};

/// A backend for shapes without data: allocations have no memory, but are counted, so that tracing
/// a pass gives the memory that it takes; operations do nothing; reading data is an error.
Backend& meta_backend();
/// A separate meta backend, with its own counts.
std::unique_ptr<Backend> make_meta_backend();

/// Whether the host can access it; true for an empty handle.
inline bool on_host(const Tensor& tensor) {
  return !tensor || tensor.backend().device() == DeviceType::kCpu;
}

}  // namespace starling
