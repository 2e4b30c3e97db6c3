#pragma once

#include <memory>

#include "kernels/cuda/libraries/cudnn_graphs.h"
#include "kernels/cuda/libraries/libraries.h"

namespace starling::cuda {

/// The backend's Cudnn with any GraphMaker. Plans are cached by spec; a spec without an engine is
/// remembered and logged once.
std::unique_ptr<Cudnn> make_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces,
                                  std::unique_ptr<GraphMaker> maker);

}  // namespace starling::cuda
