#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "apps/training/device/device_settings.h"
#include "comm/algorithm.h"
#include "comm/capture.h"
#include "comm/transport.h"
#include "core/autograd.h"

namespace starling {

/// Limit on a run's graphs; steps that would need more are issued without graphs.
inline constexpr std::int64_t kMostGraphs = 64;

/// What the config determines about a run's graphs (config/graph_plan.h).
struct GraphPlan {
  GraphChoice choice = GraphChoice::kAuto;
  std::int64_t accumulate = 1;  ///< micro-batches of a step
  std::int64_t rule_phases =
      1;                    ///< of a rule whose steps are not training's, as updates are skipped
  std::int64_t period = 0;  ///< number of steps after which the same work repeats; 0: never
  std::int64_t graphs = 0;
  std::string why_not;  ///< why steps cannot be graphs; empty: they can

  /// Number of graphs for a period: one for each step, and those for earlier micro-batches.
  std::int64_t count(std::int64_t period, bool two_buffers) const;
  /// The reason if they are too many; otherwise empty.
  std::string too_many(std::int64_t period, bool two_buffers) const;
};

/// Why steps cannot be graphs on this device and transport, the lowest rank's reason; empty if they
/// can. Collective with GPUs. With "cuda_graphs": true a reason is an error.
std::string agree_on_graphs(const GraphPlan& plan, Backend& backend, Transport& transport);

/// A micro-batch's position in its step.
struct MicroBatch {
  std::int64_t index = 0;
  bool first = true, last = true;
};

/// Runs the device work of micro-batches: eagerly in the first steps, and if graphs are not
/// possible; later as graphs, one per micro-batch. A graph is captured for the first micro-batch of
/// its kind, launched, and launched again for all others that do the same work on the same memory:
/// for a step's last micro-batch, with exchanges and updates, if the algorithm's work repeats
/// (Algorithm::graph_period()); for the others if parameters are at the same addresses.
///
/// All ranks do the same, since graphs change when gossip starts exchanges
/// (AlgorithmSite::start_at_begin), and NCCL requires that all ranks capture an operation or none.
/// They agree before training and after each capture: if one fails, all continue without graphs,
/// with the same exchanges in the same order.
class StepGraphs {
 public:
  /// Collective, before the algorithm is made. The references outlive it.
  StepGraphs(GraphPlan plan, Backend& backend, Transport& transport);
  /// AlgorithmSite::start_at_begin; also whether a step's scalars must be known before its work.
  bool start_at_begin() const { return start_at_begin_; }
  /// Collective, after the algorithm is made.
  void attach(Algorithm& algorithm, Mixer& mixer, Tape& tape, std::vector<Bucket>& buckets);

  /// Issues a micro-batch's work and returns its loss. Must issue the same work in each call.
  using Work = std::function<Tensor()>;
  /// `dropout_counter`: the pass's. The loss is valid until the next call.
  Tensor run(const MicroBatch& micro, const StepInfo& info, std::uint64_t dropout_counter,
             const Work& work);

  /// Empty while there are graphs, and if they are switched off.
  const std::string& why_not() const { return why_not_; }
  /// Eager steps before the first capture, in which libraries choose algorithms: each round once,
  /// each kind of micro-batch twice, and one more, since step 0 does not mix.
  std::int64_t warm_up_steps() const { return std::max<std::int64_t>(period_, 2) + 1; }
  std::size_t graphs() const { return graphs_.size(); }

 private:
  /// Whether first and last micro-batch; the step within the period; the rule's phase
  using Key = std::tuple<bool, bool, std::int64_t, std::int64_t>;
  struct Captured {
    std::unique_ptr<Capture> capture;
    Tensor loss;
  };
  Key key_of(const MicroBatch& micro, const StepInfo& info) const;
  /// Returns false if the capture failed on any rank; then graphs are abandoned. Collective.
  bool capture(Captured& captured, const StepValues& values, const Work& work);
  /// Why it failed on this rank; empty if it did not.
  std::string try_capture(Captured& captured, const StepValues& values, const Work& work);
  void give_up(const std::string& why);
  void say(const std::string& why);

  GraphPlan plan_;
  Backend& backend_;
  Transport& transport_;
  Mixer* mixer_ = nullptr;
  std::vector<Bucket>* buckets_ = nullptr;
  Tape* tape_ = nullptr;
  std::int64_t period_ = 0;
  bool two_buffers_ = false;
  bool on_ = false, start_at_begin_ = false;
  std::string why_not_;
  std::int64_t steps_ = 0;  ///< since this was made
  std::map<Key, Captured> graphs_;
};

}  // namespace starling
