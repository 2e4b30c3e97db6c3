#pragma once

#include <map>
#include <memory>
#include <string>

#include "kernels/cuda/libraries/cudnn_graphs.h"
#include "kernels/cuda/libraries/libraries.h"

namespace starling::cuda {

/// The plans of all graphs requested so far, each made at the first call, and the engine chosen for
/// each. A graph without an engine is remembered and logged once.
class CudnnPlans {
 public:
  CudnnPlans(const LibrarySettings& settings, WorkspaceSource& workspaces,
             std::unique_ptr<GraphMaker> maker);

  /// A graph's plan and the chosen candidate.
  struct Entry {
    GraphSpec spec;
    std::unique_ptr<GraphPlan> plan;
    int chosen = -1;
    std::size_t workspace = 0;
    bool timed = false;
  };
  /// Returns the plan; null if no engine supports the graph.
  Entry* find(const GraphSpec& spec);
  void run(Entry& entry, const Bindings& bindings, StreamHandle stream);

  std::string version() const { return maker_->version(); }

 private:
  PlanRules rules() const {
    return {.tf32 = settings_.tf32, .deterministic = settings_.deterministic};
  }
  void prepare(const GraphSpec& spec, Entry& entry);
  void issue(Entry& entry, int candidate, std::size_t bytes, const Bindings& bindings,
             StreamHandle stream);
  void choose(Entry& entry, const Bindings& bindings, StreamHandle stream);

  LibrarySettings settings_;
  WorkspaceSource& workspaces_;
  std::unique_ptr<GraphMaker> maker_;
  std::map<GraphSpec, Entry> entries_;
};

}  // namespace starling::cuda
