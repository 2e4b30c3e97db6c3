#include "kernels/cuda/libraries/cudnn.h"

namespace starling::cuda {

std::unique_ptr<Cudnn> open_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces) {
  return make_cudnn(settings, workspaces, make_device_graphs());
}

}  // namespace starling::cuda
