#pragma once

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

/// Most graphs that are made for a run; a step that would need more is issued anew each time.
inline constexpr std::int64_t kMostGraphs = 64;

/// The graphs of a run, as far as its config tells (config/graph_plan.h).
struct GraphPlan {
  GraphChoice choice = GraphChoice::kAuto;
  std::int64_t accumulate = 1;  ///< micro-batches of a step
  std::int64_t rule_phases =
      1;                    ///< of a rule whose steps are not training's, as updates are skipped
  std::int64_t period = 0;  ///< after so many steps the same work comes again; 0: never
  std::int64_t graphs = 0;
  std::string why_not;  ///< empty where steps can be graphs

  /// Graphs of that period: one for every step of it, and what the micro-batches before the last
  /// need.
  std::int64_t count(std::int64_t period, bool two_buffers) const;
  /// Why they are too many; empty where they are not.
  std::string too_many(std::int64_t period, bool two_buffers) const;
};

/// Why steps cannot be graphs on this device and transport, the same on all ranks: the lowest
/// rank's reason; empty where they can. Collective where there are several ranks with GPUs. With
/// "cuda_graphs": true a reason is an error.
std::string agree_on_graphs(const GraphPlan& plan, Backend& backend, Transport& transport);

/// A micro-batch's place in its step.
struct MicroBatch {
  std::int64_t index = 0;
  bool first = true, last = true;
};

/// Runs the device work of micro-batches: as it is issued in the first steps, and where there can
/// be no graphs; later as graphs. A graph is one micro-batch: it is captured when the first of its
/// kind comes, launched at once, and launched again for all others. Micro-batches are of one kind
/// that do the same work on the same memory: the last one of a step, with its exchanges and
/// updates, where the algorithm says that steps repeat (Algorithm::graph_period), the others
/// wherever parameters lie in the same place.
///
/// All ranks do the same: it changes when gossip starts its exchanges
/// (AlgorithmSite::start_at_begin), and NCCL wants an operation to be captured by all its ranks or
/// by none. So they agree before training, and after each capture: should it fail on one, all go on
/// without graphs, with the same exchanges in the same order.
class StepGraphs {
 public:
  /// Collective, before the algorithm is made. The rest outlives it.
  StepGraphs(GraphPlan plan, Backend& backend, Transport& transport);
  /// AlgorithmSite's, and whether the step's scalars must be known before its work is issued. Stays
  /// as it is when graphs are given up.
  bool start_at_begin() const { return start_at_begin_; }
  /// Collective, once the algorithm is made.
  void attach(Algorithm& algorithm, Mixer& mixer, Tape& tape, std::vector<Bucket>& buckets);

  /// Issues a micro-batch's work and returns its loss. The same work must come again when called
  /// again.
  using Work = std::function<Tensor()>;
  /// `dropout_counter`: the pass's. The loss is valid until the next call.
  Tensor run(const MicroBatch& micro, const StepInfo& info, std::uint64_t dropout_counter,
             const Work& work);

  /// Empty while there are graphs, or where none were wanted.
  const std::string& why_not() const { return why_not_; }
  /// Number of steps that are issued before the first capture: each round once, each kind of
  /// micro-batch twice, and one step more, since step 0 mixes nothing. Libraries choose their
  /// algorithms then, and buffers are made.
  std::int64_t warm_up_steps() const;
  std::size_t graphs() const { return graphs_.size(); }

 private:
  /// First and last of its step; the step in its period; the rule's phase
  using Key = std::tuple<bool, bool, std::int64_t, std::int64_t>;
  struct Captured {
    std::unique_ptr<Capture> capture;
    Tensor loss;
  };
  Key key_of(const MicroBatch& micro, const StepInfo& info) const;
  /// Collective. False where the capture failed on any rank; then graphs are given up.
  bool capture(Captured& captured, const StepValues& values, const Work& work);
  /// Why it failed on this rank; empty where it did not.
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
