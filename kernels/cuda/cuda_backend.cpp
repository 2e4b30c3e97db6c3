#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/operations/convolutions.h"
#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/trace.h"
#include "kernels/cuda/backend_host.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/pool.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/staging.h"

namespace starling::cuda {
namespace {

class CudaStorage final : public Storage {
 public:
  CudaStorage(Backend& backend, std::shared_ptr<Pool> pool, Pool::Block block, std::size_t bytes)
      : Storage(backend, block.data, bytes), pool_(std::move(pool)), block_(block) {}
  ~CudaStorage() override { pool_->give_back(block_); }

 private:
  std::shared_ptr<Pool> pool_;  // outlives the last of its blocks
  Pool::Block block_;
};

// cuBLASLt's kernels for tensor cores load 16 bytes at a time where what lies side by side in
// memory is a whole number of those. A vocabulary of 50,257 is not: its products took kernels of
// half the speed, although its lines are padded. So a long dimension gives what is beyond a
// multiple of 64 to a product of its own. Empty where all stays one.
std::vector<Matmul> aligned_pieces(const Matmul& args) {
  constexpr std::int64_t kLoad = 8, kTile = 64, kLong = 1024;
  const auto beyond = [](std::int64_t size) {
    return size >= kLong && size % kLoad != 0 ? size % kTile : 0;
  };
  const FactorLayout a = factor_layout(args.a), b = factor_layout(args.b);
  const bool padded = is_low_precision(args.a.dtype()) && a.line % kLoad == 0 &&
                      b.line % kLoad == 0 && factor_layout(args.c).line % kLoad == 0;
  if (!padded || args.bias || args.relu) return {};
  // A piece of a dimension of a, b and c, where one has it; 0: not theirs
  const auto piece = [&](int of_a, int of_b, int of_c, std::int64_t first, std::int64_t count) {
    Matmul result = args;
    if (of_a > 0) result.a = args.a.slice(of_a, first, count);
    if (of_b > 0) result.b = args.b.slice(of_b, first, count);
    if (of_c > 0) result.c = args.c.slice(of_c, first, count);
    return result;
  };
  const std::int64_t m = args.c.shape()[1], n = args.c.shape()[2], k = args.a.shape()[2];
  if (const std::int64_t few = beyond(n); few > 0)
    return {piece(0, 2, 2, 0, n - few), piece(0, 2, 2, n - few, few)};
  if (const std::int64_t few = beyond(m); few > 0 && a.transposed)
    return {piece(1, 0, 1, 0, m - few), piece(1, 0, 1, m - few, few)};
  if (const std::int64_t few = beyond(k); few > 0 && (!a.transposed || b.transposed)) {
    // The few come first, so that what is rounded between the two is small.
    std::vector<Matmul> pieces{piece(2, 1, 0, k - few, few), piece(2, 1, 0, 0, k - few)};
    pieces[1].accumulate = true;
    return pieces;
  }
  return {};
}

}  // namespace

CudaBackend::CudaBackend(int device, bool tf32, bool benchmark, bool deterministic)
    : info_(device_info(device)) {
  settings_ = {tf32, benchmark, deterministic, info_};
  use_device(device);
  streams_ = {create_stream("compute", false), create_stream("update", true),
              create_stream("communication", true), create_stream("upload", false)};
  pool_ = std::make_shared<Pool>(device, info_.name, [streams = streams_] {
    for (const StreamHandle stream : streams) host_wait_stream(stream);
  });
  host_ = std::make_unique<Host>(streams_);
  constexpr std::size_t kEach = kArrivals * sizeof(unsigned);
  arrivals_ = static_cast<unsigned*>(device_allocate(2 * kStreamKinds * kEach));
  if (!arrivals_)
    fail(ExitCode::kMemory, "memory", "no memory for {} bytes of counters on {}",
         2 * kStreamKinds * kEach, info_.name);
  for (std::size_t i = 0; i < kStreamKinds; ++i) {
    set_async(arrivals_ + i * kArrivals, 0, kEach, streams_[i]);
    // Graphs are launched on the compute stream.
    set_async(arrivals_ + (kStreamKinds + i) * kArrivals, 0, kEach,
              streams_[static_cast<std::size_t>(StreamKind::kCompute)]);
  }
  cudnn_ = open_cudnn(settings_, *this);
  blas_ = open_blas(settings_, *this);
  compiler_ = open_compiler(settings_);
}

CudaBackend::~CudaBackend() {
  abandon_capture();
  try {
    synchronize();
  } catch (...) {  // an error of earlier work, which its own waits report
  }
  blas_.reset();
  cudnn_.reset();
  step_block_ = {};
  peer_.reset();
  host_.reset();
  device_free(arrivals_);
  pool_->close();
  for (const StreamHandle stream : streams_) destroy_stream(stream);
}

std::string CudaBackend::description() const {
  std::string text = fmt::format("{}, sm_{}{}, CUDA {}.{}", info_.name, info_.major, info_.minor,
                                 info_.runtime_version / 1000, info_.runtime_version % 1000 / 10);
  if (cudnn_) text += ", " + cudnn_->version();
  if (blas_) text += ", " + blas_->version();
  return text;
}

std::shared_ptr<Storage> CudaBackend::allocate(std::size_t bytes) {
  const Pool::Block block = pool_->take(bytes, stream_);
  try {
    return std::make_shared<CudaStorage>(*this, pool_, block, bytes);
  } catch (...) {
    pool_->give_back(block);
    throw;
  }
}

MemoryStats CudaBackend::memory_stats() const { return pool_->stats(); }

Tensor CudaBackend::scratch(std::int64_t elements, DType dtype) {
  return Tensor(*this, Shape{elements}, dtype);
}

unsigned* CudaBackend::arrivals() const {
  return arrivals_ +
         (static_cast<std::size_t>(stream()) + (capturing() ? kStreamKinds : 0)) * kArrivals;
}

void CudaBackend::copy(const Tensor& from, const Tensor& to) {
  require(from.dtype() == to.dtype() && from.elements() == to.elements(), "cuda",
          "copy of {} {} elements to {} {} elements", from.elements(), name_of(from.dtype()),
          to.elements(), name_of(to.dtype()));
  if (from.bytes() > 0 && from.raw() != to.raw())
    copy_async(to.raw(), from.raw(), from.bytes(), CopyKind::kDeviceToDevice, handle());
}

void CudaBackend::copy_from_host(const void* from, const Tensor& to) {
  not_in_capture("copy_from_host");
  if (to.bytes() > 0) host_->staging(to.bytes()).to_device(from, to.raw(), to.bytes(), handle());
}

void CudaBackend::copy_to_host(const Tensor& from, void* to) {
  not_in_capture("copy_to_host");
  if (from.bytes() > 0)
    host_->staging(from.bytes()).to_host(from.raw(), to, from.bytes(), stream_, handle());
}

Event CudaBackend::copy_to_host_later(const Tensor& from, void* to) {
  not_in_capture("copy_to_host_later");
  require(from.bytes() <= Host::kSmallCopy, "cuda",
          "copy_to_host_later of {} bytes; it takes {} at most", from.bytes(), Host::kSmallCopy);
  if (from.bytes() == 0) return record();
  return host_->small.to_host_later(from.raw(), to, from.bytes(), stream_, handle());
}

void CudaBackend::fill(const Tensor& x, double value) {
  if (x.bytes() == 0) return;
  if (value == 0.0 && !std::signbit(value)) {
    set_async(x.raw(), 0, x.bytes(), handle());
  } else {
    fill_numbers(*this, x, value);
  }
}

std::shared_ptr<std::byte> CudaBackend::allocate_host(std::size_t bytes) {
  void* memory = pinned_allocate(std::max<std::size_t>(bytes, 1));
  if (!memory)
    fail(ExitCode::kMemory, "memory",
         "no page-locked memory on the host: {} bytes are needed; see ulimit -l", bytes);
  return {static_cast<std::byte*>(memory), [](std::byte* pinned) { pinned_free(pinned); }};
}

void CudaBackend::copy_to_pinned(const Tensor& from, std::byte* to) {
  if (from.bytes() > 0) copy_async(to, from.raw(), from.bytes(), CopyKind::kDeviceToHost, handle());
}

void CudaBackend::copy_from_pinned(const std::byte* from, const Tensor& to) {
  if (to.bytes() > 0) copy_async(to.raw(), from, to.bytes(), CopyKind::kHostToDevice, handle());
}

Event CudaBackend::record() { return host_->events.record(stream_); }
void CudaBackend::wait(Event event) { host_->events.wait(stream_, event); }

void CudaBackend::synchronize(Event event) {
  not_in_capture("synchronize");
  host_->events.synchronize(event);
  host_->small.finish(event);
}

void CudaBackend::synchronize() {
  not_in_capture("synchronize");
  const TraceSpan span(kHostWait);
  for (const StreamHandle stream : streams_) host_wait_stream(stream);
  host_->small.finish_all();
}

bool CudaBackend::done(Event event) {
  // A thread that never chose a device has device 0, where the runtime would make a context for it.
  thread_local int device = -1;
  if (device != info_.number) {
    use_device(info_.number);
    device = info_.number;
  }
  return host_->events.done(event);
}

void CudaBackend::issue(const Conv2dForward& args) {
  const bool depthwise = takes_depthwise(args.x, args.y, args.window);
  if (!depthwise && cudnn_ && cudnn_->conv2d_forward(args, handle())) {
    // In the same graph cuDNN would compile it, 0.6 s and more per shape.
    if (args.bias) map({MapFunction::kAdd, args.y, args.bias, args.y});
    return;
  }
  if (depthwise) return depthwise_conv2d_forward(*this, args);
  plain_conv2d_forward(*this, args);
}

void CudaBackend::issue(const Conv2dBackwardData& args) {
  const bool depthwise = takes_depthwise(args.dx, args.dy, args.window);
  if (!depthwise && cudnn_ && cudnn_->conv2d_backward_data(args, handle())) return;
  if (depthwise) return depthwise_conv2d_backward_data(*this, args);
  plain_conv2d_backward_data(*this, args);
}

void CudaBackend::issue(const Conv2dBackwardWeights& args) {
  Conv2dBackwardWeights weights = args;
  weights.dbias = {};
  const bool depthwise = takes_depthwise(args.x, args.dy, args.window);
  if (depthwise) {
    depthwise_conv2d_backward_weights(*this, weights);
  } else if (!cudnn_ || !cudnn_->conv2d_backward_weights(weights, handle())) {
    plain_conv2d_backward_weights(*this, weights);
  }
  if (args.dbias) reduce({args.dy, args.dbias, args.accumulate});
}

void CudaBackend::issue(const AttentionForward& args) {
  if (!cudnn_ || !cudnn_->attention_forward(args, handle())) plain_attention_forward(*this, args);
}

void CudaBackend::issue(const AttentionBackward& args) {
  if (!cudnn_ || !cudnn_->attention_backward(args, handle())) plain_attention_backward(*this, args);
}

void CudaBackend::issue(const Matmul& args) {
  const std::vector<Matmul> parts = batches_of(args);
  if (args.in_steps()) {
    const bool whole = blas_ && parts.size() == 1 && aligned_pieces(parts[0]).empty();
    if (!whole || !blas_->matmul(parts[0], handle())) matmul_in_steps(*this, args);
    return;
  }
  for (const Matmul& part : parts) {
    const std::vector<Matmul> pieces = aligned_pieces(part);
    if (pieces.empty()) product(part);
    for (const Matmul& piece : pieces) product(piece);
  }
}

void CudaBackend::product(const Matmul& args) {
  // True where cuBLASLt did the product; a ReLU that it has no epilogue for follows in place.
  const auto by_library = [&](Matmul product) {
    if (blas_->matmul(product, handle())) return true;
    if (!product.relu) return false;
    product.relu = false;
    if (!blas_->matmul(product, handle())) return false;
    map({MapFunction::kRelu, product.c.whole(), product.c.whole()});
    return true;
  };
  if (blas_ && by_library(args)) return;
  if (blas_ && args.bias && args.bias.dtype() != args.c.dtype()) {
    // cuBLASLt adds a bias of c's own type alone. It is rounded to that first, as PyTorch's
    // autocast does: a product in fp32 would write and read twice as much.
    Matmul rounded = args;
    rounded.bias = Tensor(*this, args.bias.shape(), args.c.dtype());
    cast({.x = args.bias, .y = rounded.bias});
    if (by_library(rounded)) return;
  }
  plain_matmul(*this, args);
}

}  // namespace starling::cuda
