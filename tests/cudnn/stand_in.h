#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "kernels/cuda/libraries/cudnn.h"
#include "kernels/cuda/libraries/cudnn_graphs.h"

namespace starling::testing {

Backend& cpu();

/// Makes plans that the CPU backend runs in fp32, on memory that the CPU can reach: the library
/// around the graphs can then be tested whole.
class StandIn final : public cuda::GraphMaker {
 public:
  int candidates = 3;                                   ///< of every plan
  std::function<bool(const cuda::GraphSpec&)> refuses;  ///< graphs without engines
  std::function<bool(int candidate)> cannot_finalise, cannot_run;
  int finalised = 0;                         ///< attempts
  std::vector<double> times{3.0, 1.0, 2.0};  ///< of the candidates, in milliseconds
  std::map<cuda::GraphSpec, int> planned;    ///< how often each was asked for
  std::vector<int> runs;                     ///< candidates, in order
  cuda::PlanRules rules;                     ///< of the latest plan

  std::unique_ptr<cuda::GraphPlan> plan(const cuda::GraphSpec& spec,
                                        const cuda::PlanRules& rules_wanted,
                                        std::string& why) override;
  std::string version() const override { return "stand-in"; }
};

class Workspaces final : public cuda::WorkspaceSource {
 public:
  std::shared_ptr<Storage> workspace(std::size_t bytes) override { return cpu().allocate(bytes); }
};

/// The library around cuDNN's graphs, with a StandIn that makes the plans.
struct Library {
  explicit Library(const cuda::LibrarySettings& settings = {}) {
    auto owned = std::make_unique<StandIn>();
    graphs = owned.get();
    cudnn = cuda::make_cudnn(settings, workspaces, std::move(owned));
  }
  Workspaces workspaces;
  StandIn* graphs = nullptr;
  std::unique_ptr<cuda::Cudnn> cudnn;
};

}  // namespace starling::testing
