#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "comm/planner/network_model.h"
#include "topology/topology.h"

// Predicts the time of a training step by simulating the scheduler's time line of exchanges and
// computation. This folder: performance predictions before a run. measure_network: measures a
// network_model; round_cost: the cost of a topology's exchanges; predict: the time of a step;
// advice: recommends topology, algorithm and bucket size.

namespace starling {

struct AlgorithmPlan;
struct MixerKind;

/// Latency in seconds above which restarting an idle connection matters
inline constexpr double kLongLatency = 2e-3;

/// Cost of one round for all ranks: latency · ⌈bytes / window⌉ + bytes · per_byte seconds for a
/// bucket of `bytes`. Concurrent exchanges add up in the second term, not in the first.
struct RoundCost {
  double latency = 0.0;
  double window = 0.0;  ///< bytes of a bucket in flight at a time; 0: all
  double waiting(double bytes) const {
    return latency * (window > 0.0 ? std::max(1.0, std::ceil(bytes / window)) : 1.0);
  }
  double per_byte = 0.0;
  /// Mean over ranks, those of a replica apart, of the bytes sent per byte of bucket
  double sent_per_byte = 0.0;
  double between_per_byte = 0.0;  ///< bytes that leave the busiest host per byte of bucket
  /// Seconds of a core per byte of bucket, for the busiest host's ranks
  double cpu_per_byte = 0.0;
  /// Length of the period's critical path per round; below 1 if hosts that are idle in some rounds
  /// proceed to the next
  double pace = 1.0;
  /// Rounds between two uses of a pair's connection, if latency makes that matter
  std::int64_t again = 1;
  /// Additional buffers that the update reads: received ones, or neighbours' in shared memory
  double local_reads = 0.0;
};
/// `whole`: MixerKind::whole; otherwise groups and nodes use sums or shared memory.
RoundCost cost_of(const Round& round, const NetworkModel& network, bool whole = false);
RoundCost cost_of_all_reduce(const NetworkModel& network);
/// First within nodes, then between them.
RoundCost cost_of_all_reduce_by_nodes(const NetworkModel& network, int ranks_per_node);
/// The costs of one period's rounds (64 at most).
std::vector<RoundCost> costs_of(const Topology& topology, const NetworkModel& network,
                                bool whole = false);

/// One parameter, in the order in which gradients become ready.
struct PlannedTensor {
  double bytes = 0.0;
  /// Fraction of the backward pass after which its gradient is complete
  double ready = 0.0;
  /// FLOPs of matrix products in its update (Muon)
  double matrix_flops = 0.0;
};

/// One rank's computation in a step.
struct StepModel {
  double forward = 0.0, backward = 0.0;  ///< seconds
  std::vector<PlannedTensor> tensors;    ///< ascending `ready`
  /// Bytes that the update moves per byte of parameters: AdamW 7, SGD with momentum 5
  double update_traffic = 7.0;
  double matrix_flops_per_second = 0.0;  ///< of products in updates; 0: they take no time
  /// Bytes on the wire per byte of parameters in gossip; 0.5: fp32 as bf16
  double gossip_wire = 1.0;
  /// Relative error of times measured on a busy machine: the variation between passes, or the
  /// fraction of time that threads waited for a core
  double noise = 0.0;
  bool gossip_whole = false;  ///< MixerKind::whole, see costs_of()
  void exchange_by(const MixerKind& mixer);
  /// Sum over all tensors.
  double matrix_flops() const;
  double matrix_seconds(double flops) const {
    return matrix_flops_per_second > 0.0 ? flops / matrix_flops_per_second : 0.0;
  }
};
/// For an unknown model: `parameters` in 64 equal tensors that become ready at equal intervals, a
/// third of the time in the forward pass, updated by AdamW.
StepModel even_step(double parameters, double seconds);

struct PlannedBucket {
  double bytes = 0.0;
  double ready = 0.0;
  double matrix_flops = 0.0;
};
/// Fills buckets as plan_buckets() does (semantics.md section 1).
std::vector<PlannedBucket> planned_buckets(const StepModel& step, double bucket_bytes);

struct Prediction {
  double step = 0.0;           ///< seconds, the mean over a period
  double exposed = 0.0;        ///< seconds of them waiting for exchanges
  double sent = 0.0;           ///< mean bytes that a rank sends in a step
  double between_hosts = 0.0;  ///< bytes that leave the busiest host in a step
};
/// Gossip in order awc (semantics.md section 2): an exchange starts every `interval` steps and may
/// take a whole step. It receives `tensors` of the bucket's size from each neighbour.
Prediction predict_gossip(const std::vector<RoundCost>& rounds, const NetworkModel& network,
                          const StepModel& step, double bucket_bytes, bool overlap = true,
                          std::int64_t interval = 1, int tensors = 1);
/// A mean over all ranks every `period` steps, which may overlap with `hidden` steps. `gathered`:
/// each rank sends its model to all others.
Prediction predict_averages(const NetworkModel& network, const StepModel& step, double bucket_bytes,
                            std::int64_t period, std::int64_t hidden = 0, double wire = 1.0,
                            bool gathered = false);
/// Rounds of a topology, one every `period` steps, which may overlap with `hidden` steps.
Prediction predict_outer_rounds(const std::vector<RoundCost>& rounds, const NetworkModel& network,
                                const StepModel& step, double bucket_bytes, std::int64_t period,
                                std::int64_t hidden);
/// Means over all ranks, each started `interval` seconds after the end of the last; no step waits.
Prediction predict_asynchronous(const NetworkModel& network, const StepModel& step,
                                double bucket_bytes, double interval);
/// Gradient all-reduce, overlapped with the backward pass. `ranks_per_node` above 1: first within
/// nodes, then between them.
Prediction predict_all_reduce(const NetworkModel& network, const StepModel& step,
                              double bucket_bytes, bool overlap = true, int ranks_per_node = 1);
/// EncodedMean with `wire` bytes per byte: chunks travel during the backward pass, their means
/// after it.
Prediction predict_encoded_mean(const NetworkModel& network, const StepModel& step,
                                double bucket_bytes, double wire);
/// Predicts a step with all exchanges of the plan's AlgorithmCost. `rounds`: costs of the
/// topology's period; empty without one.
Prediction predict(const AlgorithmPlan& plan, const std::vector<RoundCost>& rounds,
                   const NetworkModel& network, const StepModel& step, double bucket_bytes);
/// Without communication.
double compute_alone(const StepModel& step, const NetworkModel& network);

}  // namespace starling
