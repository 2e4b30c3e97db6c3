#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/backend_host.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/pool.h"
#include "kernels/cuda/runtime/runtime.h"

// Graphs. A launch writes the step's values to pinned memory, copies them to the step block on the
// device, and launches the graph.
namespace starling::cuda {
namespace {

constexpr std::size_t kStepBlock = 256 << 10;  // for some thousand step-dependent operations
constexpr std::size_t kSlotAlignment = 16;

}  // namespace

struct CudaBackend::Capture {
  struct Slot {
    std::size_t offset = 0;
    StepWriter write;
  };
  StepValues values;
  std::vector<Slot> slots;
  std::size_t bytes = 0;
};

class CudaBackend::Graph final : public DeviceGraph {
 public:
  Graph(CudaBackend& backend, GraphHandle graph, Capture capture, std::vector<StreamKind> outer)
      : backend_(backend),
        graph_(graph),
        slots_(std::move(capture.slots)),
        bytes_(capture.bytes),
        outer_(std::move(outer)) {}
  ~Graph() override {
    try {
      if (launched_.id != 0) backend_.host_->events.synchronize(launched_);
    } catch (...) {  // errors of earlier work are reported by its own waits
    }
    destroy_graph(graph_);
    slots_.clear();
    backend_.pool_->release_graph();
  }

  void launch(const StepValues& values) override {
    backend_.not_in_capture("DeviceGraph::launch");
    const StreamHandle stream = backend_.streams_[static_cast<std::size_t>(StreamKind::kCompute)];
    const auto write = [&](std::byte* to) {
      for (const Capture::Slot& slot : slots_) slot.write(values, to + slot.offset);
    };
    if (bytes_ > 0)
      backend_.host_->staging(bytes_).written_to_device(write, backend_.step_block_.raw(), bytes_,
                                                        stream);
    EventRing& events = backend_.host_->events;
    for (const StreamKind other : outer_) events.wait(StreamKind::kCompute, events.record(other));
    launch_graph(graph_, stream);
    launched_ = events.record(StreamKind::kCompute);
    events.launched(launched_);
  }

 private:
  CudaBackend& backend_;
  GraphHandle graph_;
  std::vector<Capture::Slot> slots_;
  std::size_t bytes_ = 0;  ///< used in the step block
  std::vector<StreamKind> outer_;
  Event launched_;
};

void CudaBackend::not_in_capture(const char* call) const {
  if (capture_)
    fail(ExitCode::kInternal, "cuda",
         "{} while a graph is captured: nothing has been done yet that it could see", call);
}

bool CudaBackend::begin_capture(const StepValues& values) {
  not_in_capture("begin_capture");
  require(stream() == StreamKind::kCompute, "cuda", "a capture begins on the compute stream");
  require(values.loss_scale > 0.0, "cuda", "a capture with the loss scale {}", values.loss_scale);
  if (!step_block_)
    step_block_ = Tensor(*this, Shape{static_cast<std::int64_t>(kStepBlock)}, DType::kUInt8);
  EventRing& events = host_->events;
  for (const StreamKind other :
       {StreamKind::kUpdate, StreamKind::kCommunication, StreamKind::kUpload}) {
    events.wait(StreamKind::kCompute, events.record(other));  // as the pool requires
  }
  auto capture = std::make_shared<Capture>();
  capture->values = values;
  cuda::begin_capture(handle());
  pool_->begin_capture();
  events.begin_capture();
  capture_ = std::move(capture);
  return true;
}

std::unique_ptr<DeviceGraph> CudaBackend::end_capture() {
  require(capturing(), "cuda", "end_capture without a capture");
  const std::shared_ptr<Capture> capture = std::exchange(capture_, nullptr);
  std::vector<StreamKind> outer = host_->events.end_capture();
  GraphHandle graph = nullptr;
  try {
    // The compute stream, on which graphs are launched, has low priority. Updates and exchanges
    // keep the higher priority of their streams.
    graph = cuda::end_capture(streams_[static_cast<std::size_t>(StreamKind::kCompute)], true);
  } catch (...) {
    pool_->end_capture(false);
    throw;
  }
  pool_->end_capture(true);
  return std::make_unique<Graph>(*this, graph, std::move(*capture), std::move(outer));
}

void CudaBackend::abandon_capture() noexcept {
  if (!capture_) return;
  cuda::abandon_capture(streams_[static_cast<std::size_t>(StreamKind::kCompute)]);
  host_->events.end_capture();
  capture_.reset();
  pool_->end_capture(false);
}

void* CudaBackend::native_stream() const {
  if (capturing()) check_capturing(handle());
  return handle();
}

const StepValues& CudaBackend::captured_values() const {
  require(capturing(), "cuda", "the values of a captured step, without a capture");
  return capture_->values;
}

const void* CudaBackend::step_slot(std::size_t bytes, StepWriter write) {
  require(capturing(), "cuda", "a slot for a step's values, without a capture");
  const std::size_t offset =
      (capture_->bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  require(offset + bytes <= kStepBlock, "cuda",
          "a graph has more than {} bytes of values that change from step to step", kStepBlock);
  capture_->slots.push_back({offset, std::move(write)});
  capture_->bytes = offset + bytes;
  return step_block_.raw() + offset;
}

}  // namespace starling::cuda
