#pragma once

#include <memory>

#include "kernels/cuda/libraries/cudnn_graphs.h"
#include "kernels/cuda/libraries/libraries.h"

namespace starling::cuda {

/// The backend's cuDNN over any maker of graphs: plans are kept by spec, a spec without an engine
/// is remembered and reported once.
std::unique_ptr<Cudnn> make_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces,
                                  std::unique_ptr<GraphMaker> maker);

}  // namespace starling::cuda
