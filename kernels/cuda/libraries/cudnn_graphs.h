#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/cuda/libraries/cudnn_spec.h"
#include "kernels/cuda/runtime/runtime.h"

// cuDNN's graphs: built and planned for the present device, or for a described one, so that a
// machine without a GPU can determine which engines the backend will use. Only cudnn_graphs.cpp
// includes cudnn-frontend.
namespace starling::cuda {

struct PlanRules {
  bool tf32 = false;          ///< false: fp32 uses engines without tensor cores only
  bool deterministic = true;  ///< only engines that sum in a fixed order
  std::size_t workspace = std::size_t{1} << 30;
};

/// The candidates for a graph: engines that support it on the device and obey the rules, in the
/// order of cuDNN's heuristics.
class GraphPlan {
 public:
  virtual ~GraphPlan() = default;
  virtual int candidates() const = 0;
  virtual std::string name(int candidate) const = 0;
  /// Loads its kernels. Returns false on failure, with the reason in `why`.
  virtual bool finalise(int candidate, std::string& why) = 0;
  /// Bytes; the candidate must be finalised.
  virtual std::size_t workspace(int candidate) const = 0;
  virtual void run(int candidate, const Bindings& bindings, void* workspace,
                   StreamHandle stream) = 0;
  /// Milliseconds that work() takes on the stream, measured by the device.
  virtual double milliseconds(StreamHandle stream, const std::function<void()>& work) = 0;
};

/// Makes plans: with cuDNN for this machine's GPU, with cuDNN for a described one (these cannot
/// run), or a test's implementation.
class GraphMaker {
 public:
  virtual ~GraphMaker() = default;
  /// Plans a graph. If there are no candidates, `why` has cuDNN's reason.
  virtual std::unique_ptr<GraphPlan> plan(const GraphSpec& spec, const PlanRules& rules,
                                          std::string& why) = 0;
  virtual std::string version() const = 0;
};

/// Plans for the calling thread's device, and runs them.
std::unique_ptr<GraphMaker> make_device_graphs();
/// Plans for the device of a description in cuDNN's JSON form (tests/cudnn/devices).
std::unique_ptr<GraphMaker> make_described_graphs(std::string_view json);

}  // namespace starling::cuda
