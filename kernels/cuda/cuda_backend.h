#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/dispatch.h"
#include "core/operations/all.h"
#include "core/peer_memory.h"
#include "kernels/cuda/device/step_scalar.h"
#include "kernels/cuda/libraries/libraries.h"
#include "kernels/cuda/runtime/runtime.h"

// What lives here: the plug-in libstarling_cuda.so. This class makes a backend of four folders.
// runtime/: memory, streams, events, graphs, peers, everything behind one interface that tests
// replace; libraries/: cuDNN and cuBLASLt, and the choice among their ways; operations/: own
// kernels, one idea a file; device/: what kernels share. No header of another folder includes one
// of these.

namespace starling::cuda {

class Pool;

/// One GPU. Operations are issued to one of four streams and return at once. Memory comes from a
/// pool whose blocks are reused in the order of the stream that they were last allocated on: a
/// tensor that another stream uses too is kept by its owner until the streams have been joined. Own
/// kernels: *.cu; libraries: libraries.h.
class CudaBackend final : public Backend, private WorkspaceSource {
 public:
  CudaBackend(int device, bool tf32, bool benchmark, bool deterministic);
  ~CudaBackend() override;

  DeviceType device() const override { return DeviceType::kCuda; }
  std::string description() const override;

  std::shared_ptr<Storage> allocate(std::size_t bytes) override;
  MemoryStats memory_stats() const override;
  void copy(const Tensor& from, const Tensor& to) override;
  /// Through pinned staging memory; returns when `from` has been read
  void copy_from_host(const void* from, const Tensor& to) override;
  void copy_to_host(const Tensor& from, void* to) override;
  Event copy_to_host_later(const Tensor& from, void* to) override;
  void fill(const Tensor& x, double value) override;
  /// For the caller to keep: not from a pool
  std::shared_ptr<std::byte> allocate_host(std::size_t bytes) override;
  void copy_to_pinned(const Tensor& from, std::byte* to) override;
  void copy_from_pinned(const std::byte* from, const Tensor& to) override;

  void set_stream(StreamKind stream) override { stream_ = stream; }
  StreamKind stream() const override { return stream_; }
  Event record() override;
  void wait(Event event) override;
  void synchronize(Event event) override;
  bool done(Event event) override;
  void* native_stream() const override;
  std::unique_ptr<DeviceClock> device_clock() override;   ///< device_clock.cpp
  PeerMemory* peer_memory() override;                     ///< peer.cpp
  bool begin_capture(const StepValues& values) override;  ///< graphs: graph.cpp
  std::unique_ptr<DeviceGraph> end_capture() override;
  void abandon_capture() noexcept override;
  bool capturing() const override { return capture_ != nullptr; }
  void synchronize() override;

  /// The current stream.
  StreamHandle handle() const { return streams_[static_cast<std::size_t>(stream())]; }
  const DeviceInfo& info() const { return info_; }
  /// Scratch memory of the current stream: an own kernel's partial sums.
  Tensor scratch(std::int64_t elements, DType dtype);
  /// kArrivals counters for last_block() of launches on the current stream, 0 between launches.
  /// Streams run concurrently, and so do graphs and eager work, so each has its own; graphs do not
  /// run concurrently with each other.
  unsigned* arrivals() const;
  static constexpr unsigned kArrivals = 2048;

  /// Writes an operation's bytes for a step; as many as at the capture.
  using StepWriter = std::function<void(const StepValues& values, std::byte* to)>;
  /// Of the step that is captured.
  const StepValues& captured_values() const;
  /// In a capture: the device address of bytes that `write` generates for each launch; 16-byte
  /// aligned.
  const void* step_slot(std::size_t bytes, StepWriter write);
  /// A kernel's argument that is `value` now and of(values, values of the capture) at a launch.
  template <class T, class Of>
  StepScalar<T> step_scalar(T value, Of of) {
    if (!capturing()) return {value, nullptr};
    const void* slot = step_slot(
        sizeof(T), [of, then = captured_values()](const StepValues& values, std::byte* to) {
          const T now = of(values, then);
          std::memcpy(to, &now, sizeof(T));
        });
    return {value, static_cast<const T*>(slot)};
  }

 private:
  STARLING_OPERATIONS(STARLING_ISSUE_OPERATION)

  /// False where it is not compiled.
  bool compiled_map(const Map& args, const MapLayout& layout);
  /// One of batches_of().
  void product(const Matmul& args);
  std::shared_ptr<Storage> workspace(std::size_t bytes) override { return allocate(bytes); }
  struct Host;     ///< staging memory and events: backend_host.h
  struct Capture;  ///< the one under way, and
  class Graph;     ///< what comes of it: graph.cpp
  void not_in_capture(const char* call) const;

  DeviceInfo info_;
  LibrarySettings settings_;
  std::array<StreamHandle, kStreamKinds> streams_{};
  std::atomic<StreamKind> stream_ = StreamKind::kCompute;  ///< atomic: another thread may allocate
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<Host> host_;
  unsigned* arrivals_ = nullptr;  ///< for each stream, then for each stream's captures
  std::shared_ptr<Capture> capture_;
  Tensor step_block_;  ///< what step_slot() gives out; all graphs use it, one after the other
  std::unique_ptr<Cudnn> cudnn_;
  std::unique_ptr<Blas> blas_;
  std::unique_ptr<Compiler> compiler_;
  std::unique_ptr<PeerMemory> peer_;  ///< made at the first call
};

/// Calls f(T{}) with the tensor's floating type: float, double, BFloat16 or Float16.
template <class F>
void floating(const Tensor& x, F&& f) {
  dispatch_floating(x.dtype(), f);
}

/// The tensor's numbers, or null where it is empty.
template <class T>
T* optional(const Tensor& x) {
  return x ? x.data<T>() : nullptr;
}

}  // namespace starling::cuda
