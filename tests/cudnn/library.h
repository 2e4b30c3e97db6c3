#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "core/backend.h"
#include "kernels/cuda/libraries/cudnn.h"
#include "kernels/open_backend.h"
#include "tests/fakes/cuda/fake_cudnn.h"

namespace starling::testing {

inline Backend& cpu() {
  static const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  return *backend;
}

class Workspaces final : public cuda::WorkspaceSource {
 public:
  std::shared_ptr<Storage> workspace(std::size_t bytes) override { return cpu().allocate(bytes); }
};

/// The library around cuDNN's graphs, with a stand-in that makes the plans, on host memory.
struct Library {
  explicit Library(const cuda::LibrarySettings& settings = {}) {
    auto owned = std::make_unique<cuda::shim::FakeGraphs>();
    graphs = owned.get();
    cudnn = cuda::make_cudnn(settings, workspaces, std::move(owned));
  }
  Workspaces workspaces;
  cuda::shim::FakeGraphs* graphs = nullptr;
  std::unique_ptr<cuda::Cudnn> cudnn;
};

}  // namespace starling::testing
