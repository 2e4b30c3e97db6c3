#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "kernels/cuda/libraries/cudnn_graphs.h"
#include "kernels/cuda/libraries/libraries.h"

namespace starling::cuda {

/// The plans of all graphs that have been asked for, made at the first call and kept, and which engine of each runs. A graph without an
/// engine is remembered and reported once; where cuDNN can compile nothing at run time, it is asked for no such graph again.
class CudnnPlans {
 public:
  CudnnPlans(const LibrarySettings& settings, WorkspaceSource& workspaces, std::unique_ptr<GraphMaker> maker);

  /// A graph's plan and the candidate that was chosen.
  struct Entry {
    GraphSpec spec;
    std::unique_ptr<GraphPlan> plan;
    int chosen = -1;
    std::size_t workspace = 0;
    bool timed = false;
  };
  /// Null where no engine does the graph. May compile for a second or more.
  Entry* find(const GraphSpec& spec);
  void run(Entry& entry, const Bindings& bindings, StreamHandle stream);

  /// Whether there are engines for every fusion; asked once. Nothing is compiled.
  bool fuses();
  std::string version() const { return maker_->version(); }

 private:
  enum class Compiler : std::uint8_t { kUntried, kWorks, kMissing };

  PlanRules rules() const { return {.tf32 = settings_.tf32, .deterministic = settings_.deterministic}; }
  void prepare(const GraphSpec& spec, Entry& entry);
  bool compiler_works(const std::string& why);
  void issue(Entry& entry, int candidate, std::size_t bytes, const Bindings& bindings, StreamHandle stream);
  void choose(Entry& entry, const Bindings& bindings, StreamHandle stream);

  LibrarySettings settings_;
  WorkspaceSource& workspaces_;
  std::unique_ptr<GraphMaker> maker_;
  std::map<GraphSpec, Entry> entries_;
  Compiler compiler_ = Compiler::kUntried;
  std::optional<bool> fuses_;  ///< once it has been asked
};

}  // namespace starling::cuda
