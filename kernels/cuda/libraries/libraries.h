#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/backend.h"
#include "core/operations/attention.h"
#include "core/operations/convolutions.h"
#include "core/operations/products.h"
#include "kernels/cuda/runtime/runtime.h"

// This folder: NVIDIA's libraries, each behind an interface that tests can replace. A call returns
// whether it did the work; false means that the library does not support this shape, precision or
// device, and the backend's own kernel is used. With the fake runtime,
// tests/fakes/cuda/fake_libraries.cpp opens stand-ins, or nothing.
// Files: cudnn_spec chooses the graph of an operation, cudnn_graphs builds it, cudnn chooses and
// caches the engine, cudnn_finish does the steps that graphs cannot; blas_lt multiplies; map_source
// generates the kernel source of an expression, which compiler compiles with NVRTC.

namespace starling::cuda {

struct LibrarySettings {
  bool tf32 = false, benchmark = false, deterministic = true;
  DeviceInfo device;
};

/// Temporary device memory from the pool, valid for work issued to the stream until the Workspace
/// is destroyed.
class WorkspaceSource {
 public:
  virtual ~WorkspaceSource() = default;
  virtual std::shared_ptr<Storage> workspace(std::size_t bytes) = 0;
};

/// cuDNN's graph API, with plans cached by operation and shape.
class Cudnn {
 public:
  virtual ~Cudnn() = default;
  /// Without the bias, which the backend adds.
  virtual bool conv2d_forward(const Conv2dForward& args, StreamHandle stream) = 0;
  virtual bool conv2d_backward_data(const Conv2dBackwardData& args, StreamHandle stream) = 0;
  /// Computes dweight only; the backend computes dbias.
  virtual bool conv2d_backward_weights(const Conv2dBackwardWeights& args, StreamHandle stream) = 0;
  virtual bool attention_forward(const AttentionForward& args, StreamHandle stream) = 0;
  virtual bool attention_backward(const AttentionBackward& args, StreamHandle stream) = 0;
  virtual std::string version() const = 0;
};
/// Opens cuDNN; null with the fake runtime without stand-ins. The same holds for open_blas().
std::unique_ptr<Cudnn> open_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces);

/// cuBLASLt, with bias, activations and the sums of a's rows in the epilogue; algorithms are cached
/// by shape. It is not documented whether its ReLU and GELU preserve NaN, as they must so that NaN
/// is noticed. So each algorithm is tested on NaN before its first use; if it loses NaN, and for
/// fp64, calls with an activation return false. Its GELU is the tanh approximation, whose tangent
/// is one of the hardware's: for bf16 and fp16 alone.
class Blas {
 public:
  virtual ~Blas() = default;
  /// One of batches_of(). Also false if only the ReLU, or what matmul_in_steps() does, is not
  /// supported: the caller tries again without it.
  virtual bool matmul(const Matmul& args, StreamHandle stream) = 0;
  virtual std::string version() const = 0;
};
std::unique_ptr<Blas> open_blas(const LibrarySettings& settings, WorkspaceSource& workspaces);

struct MapArguments;
/// NVRTC, for kernels that are generated at run time. Each is compiled once per process.
class Compiler {
 public:
  virtual ~Compiler() = default;
  /// Launches the kernel `compiled_map` of the source for `key`, with blocks of 256 threads.
  /// Compiles it first if necessary, which takes some hundred milliseconds, but not during a
  /// capture. Returns false if the kernel is not available.
  virtual bool launch(const std::string& key, const std::function<std::string()>& text,
                      unsigned blocks, const MapArguments& arguments, StreamHandle stream,
                      bool capturing) = 0;
};
std::unique_ptr<Compiler> open_compiler(const LibrarySettings& settings);

}  // namespace starling::cuda
