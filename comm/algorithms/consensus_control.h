#pragma once

#include <cstdint>
#include <memory>

#include "comm/algorithm.h"
#include "comm/mixer.h"
#include "topology/topology.h"

namespace starling {

/// Consensus control (Kong et al. 2021, arXiv 2102.04828): if the ranks' relative distance exceeds
/// δ, the next exchange is the mean over all ranks. Every check_every steps the ranks start to sum
/// ‖x - c‖² and ‖x‖², where c is the step's mix; when the sums are due, as many steps later, and
/// the root of their ratio exceeds δ, the next exchange is global.
class ConsensusControl {
 public:
  /// `saved`: fp64 [kSaved], saved in checkpoints.
  ConsensusControl(const AlgorithmSite& site, double above, std::int64_t check_every,
                   std::int64_t interval, Tensor saved);
  static constexpr std::int64_t kSaved = 8;

  /// Rounds 2k are those of the given topology, rounds 2k + 1 the mean over all ranks.
  const Topology& topology() const { return *topology_; }
  /// At the beginning of a step: evaluates the sums that are due, after wait(ticket).
  template <class Wait>
  void begin(std::int64_t step, const Wait& wait) {
    step_ = step;
    if (step % check_every_ != 0 || !summing_) return;
    settle(wait);
    judge();
  }
  /// The round of the exchange that starts now; `global`: it is a mean in any case.
  std::int64_t next_round(bool global);
  /// The last result of next_round() while that exchange is in flight; otherwise -1.
  std::int64_t in_flight = -1;

  /// Called before the updates of a step that mixes.
  void start_measuring();
  /// Adds ‖x - c‖² and ‖x‖² of a bucket, on the update stream.
  void measure(const Tensor& x, const Mix& mix);
  /// Called after the updates: starts the sums over ranks, in steps that check.
  void start_sums();

  template <class Wait>
  void settle(const Wait& wait) {
    if (ticket_) wait(ticket_);
    ticket_ = 0;
  }
  /// Writes the state to `saved`, while nothing is in flight; restore() reads it.
  void save();
  void restore();

 private:
  bool checks(std::int64_t step) const { return step % check_every_ == 0; }
  void judge();

  Backend& backend_;
  Transport& transport_;
  Replica* replica_;  ///< whose other ranks measure other parts
  std::unique_ptr<Topology> topology_;
  double above_;
  std::int64_t check_every_, interval_, step_ = 0, rounds_ = 0;
  bool summing_ = false, measuring_ = false, global_next_ = false;
  Tensor own_, sums_, saved_, apart_;  ///< fp64 [2] of this rank and of all; x - c of a bucket
  Ticket ticket_ = 0;
};

}  // namespace starling
