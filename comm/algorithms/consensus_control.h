#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/algorithm.h"
#include "comm/mixer.h"
#include "topology/topology.h"

namespace starling {

/// Consensus control (Kong et al. 2021, arXiv 2102.04828): where ranks are further apart than a
/// part δ of their own size, the next exchange is the mean over all. Every so many steps they sum
/// ‖x - c‖² and ‖x‖², c being what the step mixed; so many steps later the sums have come, and the
/// exchange that starts next is global where the root of their ratio is above δ.
class ConsensusControl {
 public:
  /// `saved`: fp64 [kSaved], of a checkpoint.
  ConsensusControl(const AlgorithmSite& site, double above, std::int64_t check_every,
                   std::int64_t interval, Tensor saved);
  static constexpr std::int64_t kSaved = 8;

  /// Even rounds are the given topology's, each half as large; odd ones the mean over all.
  const Topology& topology() const { return *topology_; }
  /// Judges the sums that have come, before anything else of the step. `wait(ticket)` waits for
  /// them.
  template <class Wait>
  void begin(std::int64_t step, const Wait& wait) {
    step_ = step;
    if (step % check_every_ != 0 || !summing_) return;
    settle(wait);
    judge();
  }
  /// The round of exchange j of the run, which starts now; `global`: it is the mean anyway.
  std::int64_t next_round(bool global);
  /// The round that next_round() gave last, once that exchange is under way; -1: none is.
  std::int64_t in_flight = -1;

  /// Called before the updates or mixes of a step that mixes.
  void start_measuring();
  /// Measures how far mixing moves x, on the update stream.
  void measure(const Tensor& x, const Mix& mix);
  /// Called after the updates or mixes: ranks start to sum, in steps that check.
  void start_sums();

  template <class Wait>
  void settle(const Wait& wait) {
    if (ticket_) wait(ticket_);
    ticket_ = 0;
  }
  /// Writes the state to `saved`; restore() reads it back. Nothing may be under way.
  void save();
  void restore();

 private:
  bool checks(std::int64_t step) const { return step % check_every_ == 0; }
  void judge();

  Backend& backend_;
  Transport& transport_;
  std::unique_ptr<Topology> topology_;
  double above_;
  std::int64_t check_every_, interval_, step_ = 0, rounds_ = 0;
  bool summing_ = false, measuring_ = false, global_next_ = false;
  Tensor own_, sums_, saved_, apart_;  ///< fp64 [2] of this rank and of all; x - c of a bucket
  Ticket ticket_ = 0;
};

}  // namespace starling
