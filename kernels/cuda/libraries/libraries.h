#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/backend.h"
#include "core/operations/attention.h"
#include "core/operations/convolutions.h"
#include "core/operations/products.h"
#include "kernels/cuda/runtime/runtime.h"

// The libraries that the backend hands work to. Each call answers whether it did the work: false
// means that the library has no way for this shape, precision or device, and the backend's own
// kernel does it. On the fake
// runtime, tests/fakes/cuda/fake_libraries.cpp opens stand-ins, or nothing.
// What lives here: what NVIDIA's libraries do for us, each behind an interface that tests replace.
// cudnn_spec says which graph an operation wants, cudnn_graphs builds it, cudnn_plans chooses and
// keeps the way it is run, cudnn_finish does what a graph leaves; blas_lt multiplies. map_source
// says an expression as a kernel's text, which compiler hands to NVRTC.

namespace starling::cuda {

struct LibrarySettings {
  bool tf32 = false, benchmark = false, deterministic = true;
  DeviceInfo device;
};

/// Temporary device memory for the work that is issued to one stream next: the pool's, valid for
/// work issued to that stream before the Workspace dies.
class WorkspaceSource {
 public:
  virtual ~WorkspaceSource() = default;
  virtual std::shared_ptr<Storage> workspace(std::size_t bytes) = 0;
};

/// cuDNN's graph API, plans cached by operation and shape.
class Cudnn {
 public:
  virtual ~Cudnn() = default;
  virtual bool conv2d_forward(const Conv2dForward& args, StreamHandle stream) = 0;
  virtual bool conv2d_backward_data(const Conv2dBackwardData& args, StreamHandle stream) = 0;
  /// Computes dweight alone; dbias is the backend's.
  virtual bool conv2d_backward_weights(const Conv2dBackwardWeights& args, StreamHandle stream) = 0;
  virtual bool attention_forward(const AttentionForward& args, StreamHandle stream) = 0;
  virtual bool attention_backward(const AttentionBackward& args, StreamHandle stream) = 0;
  virtual std::string version() const = 0;
};
/// Opens cuDNN; null on the fake runtime without stand-ins. So does open_blas().
std::unique_ptr<Cudnn> open_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces);

/// cuBLASLt, with bias and ReLU in the epilogue; algorithms cached by shape. Whether its ReLU keeps
/// a NaN is not documented, and NaN must stay to be noticed: each algorithm shows it once, on a
/// product of NaN before its first use, and where NaN is lost (or for fp64) the answer to `relu` is
/// false. GELU is a kernel of its own: cuBLASLt's is the approximation by tanh, not x·Φ(x).
class Blas {
 public:
  virtual ~Blas() = default;
  /// One of batches_of(). False also where the product would be done, but not its
  /// ReLU: the caller asks again without.
  virtual bool matmul(const Matmul& args, StreamHandle stream) = 0;
  virtual std::string version() const = 0;
};
std::unique_ptr<Blas> open_blas(const LibrarySettings& settings, WorkspaceSource& workspaces);

struct MapArguments;
/// NVRTC, for kernels that are known at run time alone. One is compiled once in a process.
class Compiler {
 public:
  virtual ~Compiler() = default;
  /// Launches the kernel `compiled_map` of the text that belongs to `key` with blocks of 256
  /// threads. Where it is not there yet it is compiled, which takes some hundred milliseconds; a
  /// capture has no time for that. False where it cannot be had.
  virtual bool launch(const std::string& key, const std::function<std::string()>& text,
                      unsigned blocks, const MapArguments& arguments, StreamHandle stream,
                      bool capturing) = 0;
};
std::unique_ptr<Compiler> open_compiler(const LibrarySettings& settings);

}  // namespace starling::cuda
