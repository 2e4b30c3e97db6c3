#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/cuda/libraries/cudnn_spec.h"
#include "kernels/cuda/runtime/runtime.h"

// cuDNN's graphs: made and planned for a device that is here or is only described, so that a
// machine without a GPU can tell which engines the backend will find. cudnn_graphs.cpp is the only
// source of the backend that includes cudnn-frontend.
namespace starling::cuda {

struct PlanRules {
  bool tf32 = false;          ///< otherwise fp32 keeps to engines without tensor cores
  bool deterministic = true;  ///< engines that sum in a fixed order alone
  std::size_t workspace = std::size_t{1} << 30;
};

/// One graph's candidates: the engines that support it on the device and keep the rules, best first
/// by cuDNN's heuristics.
class GraphPlan {
 public:
  virtual ~GraphPlan() = default;
  virtual int candidates() const = 0;
  virtual std::string name(int candidate) const = 0;
  /// Loads its kernels. False with the reason in `why`.
  virtual bool finalise(int candidate, std::string& why) = 0;
  virtual std::size_t workspace(int candidate) const = 0;  ///< of a finalised one
  virtual void run(int candidate, const Bindings& bindings, void* workspace,
                   StreamHandle stream) = 0;
  /// Milliseconds of work() on the stream, on the device's clock.
  virtual double milliseconds(StreamHandle stream, const std::function<void()>& work) = 0;
};

/// What makes plans: cuDNN on this machine's GPU, or cuDNN for a described one (whose plans cannot
/// run), or a test's own.
class GraphMaker {
 public:
  virtual ~GraphMaker() = default;
  /// The plan, perhaps without candidates; then `why` has cuDNN's reason.
  virtual std::unique_ptr<GraphPlan> plan(const GraphSpec& spec, const PlanRules& rules,
                                          std::string& why) = 0;
  virtual std::string version() const = 0;
};

/// Plans for the calling thread's device, and runs them.
std::unique_ptr<GraphMaker> make_device_graphs();
/// Plans for the device of a description in cuDNN's JSON form (tests/cudnn/devices).
std::unique_ptr<GraphMaker> make_described_graphs(std::string_view json);

}  // namespace starling::cuda
