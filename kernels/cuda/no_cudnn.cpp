#include "kernels/cuda/libraries.h"

// For builds without cuDNN: the backend's own kernels do the work.
namespace starling::cuda {

std::unique_ptr<Cudnn> open_cudnn(const LibrarySettings&, WorkspaceSource&) { return nullptr; }

}  // namespace starling::cuda
