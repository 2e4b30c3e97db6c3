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

/// What changes from step to step in work that is otherwise the same.
struct StepValues {
  std::int64_t pass = 0;  ///< t: updates done before this step
  double lr = 0.0;
  std::int64_t step = 1;              ///< the optimizer's
  double loss_scale = 1.0;            ///< fp16's, a power of two
  std::uint64_t dropout_counter = 0;  ///< the pass's at its start
};

/// Captured work, to be done again and again: on kCompute, after all that it has been told before.
/// It reads and writes the memory that the capture named: the owner keeps all tensors from outside
/// it alive. Not to outlive its backend.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  /// Without a wait or an allocation. `values` take the place of those that the capture began with.
  virtual void launch(const StepValues& values) = 0;
};

/// What a device can do. Calls are issued to the current stream of the calling thread's StreamScope
/// and may return before the work is done; synchronize() waits. Implementations: kernels/cpu,
/// kernels/cuda, and MetaBackend for shapes alone. Not thread-safe but for allocate() and the
/// release of storages: one thread issues work.
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
  /// Like copy_to_host without the wait: `to` holds the numbers after synchronize(event), until
  /// when it must live. Small tensors only (64 KiB at most).
  virtual Event copy_to_host_later(const Tensor& from, void* to) = 0;
  virtual void fill(const Tensor& x, double value) = 0;
  /// Host memory that a device copies from and to without the host's help (page-locked);
  /// Error(kMemory) where there is none.
  virtual std::shared_ptr<std::byte> allocate_host(std::size_t bytes);
  /// Copies between the device and memory of allocate_host(), on the current stream: they return at
  /// once, and the host must keep its hands off until an event recorded afterwards is done.
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
  /// Whether what the event marks is done; may be asked from any thread
  virtual bool done(Event) { return true; }
  /// The current stream as the device's libraries know it (a cudaStream_t); null where work has
  /// been done when a call returns. Throws Error(kInternal) in a capture that an earlier call has
  /// spoilt: a library could only say that something went wrong.
  virtual void* native_stream() const { return nullptr; }
  virtual void synchronize() = 0;  ///< the host waits for everything

  /// From here to end_capture() work is kept, not done; false where this backend has no graphs.
  /// Called on kCompute; other streams take part once they wait for an event recorded within, and
  /// kCompute must wait for all that they did. Operations are called with `values` of this step (an
  /// update with its lr and step; gradient_scale, loss and gradient_control with factors of its
  /// loss_scale; dropout with counters from its dropout_counter on), and follow the values of each
  /// launch later. The host neither waits nor copies; the rules of updates live as long as the
  /// graph. Each launch comes after all that kCompute, kUpdate and kCommunication have been told
  /// until then, and after what kUpload has where the capture waits for an event of it from before.
  virtual bool begin_capture(const StepValues& values) { return (void)values, false; }
  /// Throws Error(kInternal) where the capture failed; then, too, it is over.
  virtual std::unique_ptr<DeviceGraph> end_capture() { return nullptr; }
  /// Ends a capture in whose midst an error was thrown. Nothing of it has been done.
  virtual void abandon_capture() noexcept {}
  virtual bool capturing() const { return false; }

  /// A clock of the device's own, for --trace; null where work has been done when a call returns.
  virtual std::unique_ptr<DeviceClock> device_clock() { return nullptr; }
  /// Memory that ranks of one host share (core/peer_memory.h); null where there is none.
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

/// The backend of shapes alone: allocations hold no memory (but are counted, so that a traced pass
/// tells the memory a real one takes), operations do nothing, and reading a tensor's numbers is an
/// error.
Backend& meta_backend();
/// A meta backend of one's own, for counting.
std::unique_ptr<Backend> make_meta_backend();

/// Whether the host's own instructions read it; true without a tensor.
inline bool on_host(const Tensor& tensor) {
  return !tensor || tensor.backend().device() == DeviceType::kCpu;
}

}  // namespace starling
