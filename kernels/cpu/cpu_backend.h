#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/backend.h"
#include "core/operations/all.h"
#include "kernels/cpu/allocator.h"
#include "kernels/cpu/dnnl_operations.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/winograd.h"
#include "kernels/cpu/workspace.h"

// What lives here: the backend of a processor. dnnl_*: what oneDNN does. cpu_*: an operation's
// checks, threads and choice of kernel. *_isa.cpp: the loops, compiled once for each instruction
// set (isa.h) and reached through a table of functions (kernels.h); they include nothing that could
// be compiled for a set that the machine lacks. allocator, storage, workspace: memory that is used
// again. parallel: threads.

namespace starling {

/// The processor as a backend. Everything runs at once, in issue order, on `threads` threads; the
/// same calls give the same bits for a given number of threads and instruction set. fp32 takes
/// oneDNN and own vectorised kernels, fp64 own kernels alone (for gradient checks). bf16 takes
/// oneDNN where the processor multiplies it in hardware (cpu::fast_bf16), and own kernels that read
/// and write it; what neither has goes through fp32 in pieces, as do fp16's products (fp16 is here
/// for tests, not for speed).
class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads = 1, cpu::Isa isa = cpu::detected_isa());
  ~CpuBackend() override;

  DeviceType device() const override { return DeviceType::kCpu; }
  std::string description() const override;

  std::shared_ptr<Storage> allocate(std::size_t bytes) override;
  MemoryStats memory_stats() const override;
  void copy(const Tensor& from, const Tensor& to) override;
  void copy_from_host(const void* from, const Tensor& to) override;
  void copy_to_host(const Tensor& from, void* to) override;
  Event copy_to_host_later(const Tensor& from, void* to) override {
    copy_to_host(from, to);
    return {};
  }
  void fill(const Tensor& x, double value) override;

  void set_stream(StreamKind stream) override { stream_ = stream; }
  StreamKind stream() const override { return stream_; }
  Event record() override { return {}; }
  void wait(Event) override {}
  void synchronize(Event) override {}
  void synchronize() override {}

 private:
  STARLING_OPERATIONS(STARLING_ISSUE_OPERATION)

  template <class T>
  const cpu::Kernels<T>& kernels() const {
    return kernels_.of<T>();
  }
  /// Calls f(T{}) with the type of `x`: float, double, BFloat16 or Float16.
  template <class F>
  void floating(const Tensor& x, F&& f) const;

  /// The cross entropy whose targets are classes.
  void cross_entropy(const TargetLoss& args);
  template <class T>
  void batch_norm_forward_of(const BatchNormForward& args);
  template <class T>
  void batch_norm_backward_of(const BatchNormBackward& args);
  /// Where it is faster than oneDNN.
  std::optional<cpu::Winograd> winograd_for(const cpu::Geometry& g);
  template <class T, class F>
  void by_windows(const cpu::Geometry& g, const T* x, const F& run);
  template <class T>
  void conv2d_forward_of(const cpu::Geometry& g, const T* x, const T* weight,
                         const Compute<T>* bias, T* y);
  template <class T>
  void conv2d_data_by_windows(const cpu::Geometry& g, const T* dy, const T* weight, T* dx);
  template <class T>
  void conv2d_backward_data_of(const cpu::Geometry& g, const T* dy, const T* weight, T* dx);
  template <class T>
  void conv2d_backward_weights_of(const cpu::Geometry& g, const T* x, const T* dy,
                                  Compute<T>* dweight, bool accumulate);
  /// The same of a convolution of every channel alone.
  template <class T>
  void depthwise_backward_weights(const cpu::Geometry& g, const T* x, const T* dy, T* dweight,
                                  bool accumulate);
  template <class T>
  void matmul_of(const cpu::Product& p, const T* a, const T* b, const Compute<T>* bias, T* c);
  /// The product of 16-bit numbers, into fp32 or their own type.
  template <class T, class To>
  void low_matmul(const cpu::Product& p, const T* a, const T* b, const float* bias, To* c);

  /// An fp32 copy of n numbers of a 16-bit type, and back; or of `lines` lines of n numbers, which
  /// begin `step` elements apart in the 16-bit type and follow each other in fp32.
  template <class T>
  cpu::Workspace<float> widened(const T* x, cpu::Index n, cpu::Index lines = 1,
                                cpu::Index step = 0);
  template <class T>
  void narrow(const float* x, T* y, cpu::Index n, cpu::Index lines = 1, cpu::Index step = 0);
  /// Calls f(place in memory with gaps, place in memory without, numbers) for pieces of such lines.
  template <class F>
  void by_line(cpu::Index n, cpu::Index lines, cpu::Index step, const F& f);
  /// Calls f(kernels, first image, images, x, y) over parts of the images of two tensors, in
  /// numbers to compute in: 16-bit ones go through fp32, image by image.
  template <class F>
  void by_image(const Tensor& from, const Tensor& to, F&& f);

  /// A blur's filters, as the weight of a convolution of every channel alone.
  Tensor blur_weight(const Window2d& window, std::int64_t channels, DType type);

  // What the blocks of storages were taken from outlives the last of them.
  std::shared_ptr<cpu::CachingAllocator> allocator_;
  cpu::Threads threads_;
  cpu::Isa isa_;
  bool bf16_products_;  ///< oneDNN multiplies bf16 natively
  cpu::AllKernels kernels_;
  cpu::DnnlOperations dnnl_;
  StreamKind stream_ = StreamKind::kCompute;
};

}  // namespace starling
