#include "kernels/cuda/libraries.h"

// For builds without cuBLASLt: the backend's own kernels do the work.
namespace starling::cuda {

std::unique_ptr<Blas> open_blas(const LibrarySettings&, WorkspaceSource&) { return nullptr; }

}  // namespace starling::cuda
