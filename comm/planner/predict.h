#pragma once

#include <cstdint>
#include <vector>

#include "comm/planner/network_model.h"
#include "comm/planner/round_cost.h"

// What a training step will take: exchanges and computation laid out on a time line, as the
// scheduler does. What lives here: numbers before a run. measure_network: latency and bandwidth
// between ranks, as a network_model. round_cost: what a
// topology's exchanges cost there; predict: a step's time from that and a step alone;
// advice: which topology, algorithm and bucket size. Simulated clocks, no threads, no transport.

namespace starling {

struct AlgorithmPlan;
struct MixerKind;

/// One parameter, in the order in which gradients become ready.
struct PlannedTensor {
  double bytes = 0.0;
  /// 0 … 1: how much of the backward pass is over when its gradient is complete
  double ready = 0.0;
  /// Arithmetic of the products of whole matrices that its update is made of beside what it moves
  /// (Muon)
  double matrix_flops = 0.0;
};

/// One rank's computation in a step.
struct StepModel {
  double forward = 0.0, backward = 0.0;  ///< seconds
  std::vector<PlannedTensor> tensors;    ///< ascending `ready`
  /// Bytes that the update moves per byte of parameters: AdamW 7, SGD with momentum 5
  double update_traffic = 7.0;
  double matrix_flops_per_second = 0.0;  ///< that products of an update reach; 0: they take no time
  /// Bytes on the wire per byte of parameters that gossip exchanges; 0.5: fp32 as bf16
  double gossip_wire = 1.0;
  /// How far times may be off that were measured on a busy machine, as a part of them: by how much
  /// passes differed, or the part of the time that threads waited for a core
  double noise = 0.0;
  bool gossip_whole = false;  ///< every neighbour gets all of it, see costs_of()
  void exchange_by(const MixerKind& mixer);
  /// Arithmetic of all tensors' updates.
  double matrix_flops() const;
  double matrix_seconds(double flops) const {
    return matrix_flops_per_second > 0.0 ? flops / matrix_flops_per_second : 0.0;
  }
};
/// `parameters` in 64 equal tensors, ready at equal distances, a third of the time in the forward
/// pass. No shape is known: the update is AdamW's, without products of matrices.
StepModel even_step(double parameters, double seconds);

struct PlannedBucket {
  double bytes = 0.0;
  double ready = 0.0;
  double matrix_flops = 0.0;
};
/// Buckets as semantics.md section 1 fills them: one closes after the tensor that brings it to
/// `bucket_bytes` or more.
std::vector<PlannedBucket> planned_buckets(const StepModel& step, double bucket_bytes);

struct Prediction {
  double step = 0.0;           ///< seconds, the mean over a period
  double exposed = 0.0;        ///< of them, waiting for exchanges
  double sent = 0.0;           ///< bytes that a rank sends in a step, the mean
  double between_hosts = 0.0;  ///< bytes that leave the busiest host in a step
};
/// Gossip that combines while it computes (semantics.md section 2): an exchange has a whole step to
/// arrive, and one begins every `interval` steps. It brings `tensors` of the bucket's size from
/// each neighbour.
Prediction predict_gossip(const std::vector<RoundCost>& rounds, const NetworkModel& network,
                          const StepModel& step, double bucket_bytes, bool overlap = true,
                          std::int64_t interval = 1, int tensors = 1);
/// Nothing but a mean over all ranks every `period` steps, which has `hidden` of them to arrive.
Prediction predict_averages(const NetworkModel& network, const StepModel& step, double bucket_bytes,
                            std::int64_t period, std::int64_t hidden = 0);
/// Nothing but a mean over all ranks, which begins `interval` seconds past the end of the last one;
/// no step waits for it.
Prediction predict_asynchronous(const NetworkModel& network, const StepModel& step,
                                double bucket_bytes, double interval);
/// Gradient all-reduce, overlapped with the backward pass. `ranks_per_node` above 1: inside nodes
/// first, then between them.
Prediction predict_all_reduce(const NetworkModel& network, const StepModel& step,
                              double bucket_bytes, bool overlap = true, int ranks_per_node = 1);
/// The mean by encoded messages (EncodedMean), `wire` bytes for each byte: chunks travel in the
/// backward pass, their means after it.
Prediction predict_encoded_mean(const NetworkModel& network, const StepModel& step,
                                double bucket_bytes, double wire);
/// Predicts all that the plan's cost says is exchanged, given what a period's rounds cost (empty
/// without a topology), in buckets of so many bytes.
Prediction predict(const AlgorithmPlan& plan, const std::vector<RoundCost>& rounds,
                   const NetworkModel& network, const StepModel& step, double bucket_bytes);
/// No communication at all.
double compute_alone(const StepModel& step, const NetworkModel& network);

}  // namespace starling
