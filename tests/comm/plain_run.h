#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "plain_families.h"
#include "plain_optimizer.h"
#include "tests/comm/support.h"
#include "topology/topology.h"

namespace starling::test {

using Vector = std::vector<double>;
using Vectors = std::vector<Vector>;  ///< [rank][element]
using Average = std::function<Vectors(const Vectors&)>;

/// All ranks of a run side by side, in fp64: what the plain rewriting of any algorithm needs. Steps
/// t count from where the algorithm began (algorithms.md, section 6).
class PlainRun {
 public:
  PlainRun(const Job& job, int ranks, const PlainProblem* problem);

  const std::size_t n;
  std::size_t buckets = 0;
  Vectors x;
  std::vector<PlainOptimizer> optimizers;
  int steps = 0;            ///< of the present algorithm
  bool hands_over = false;  ///< another one follows

  /// Begins a part in which another algorithm trains: from the run's step `first` to before its
  /// step `end`.
  void begin(const Switch& phase, int end, bool last);
  /// Section 6: what the next algorithm finds.
  void hand_over();

  template <class T>
  T key(const char* name, T fallback) const {
    return algorithm_.value(name, fallback);
  }
  /// The algorithm's, else the topology's, else all: they share a host.
  std::size_t ranks_per_node() const {
    const auto own = key("ranks_per_node", std::size_t{0});
    return own > 0 ? own : topology_config_.value("ranks_per_node", n);
  }
  const std::string& exchange() const { return exchange_; }
  bool resets_omega() const { return job_.reset_omega; }
  std::size_t size() const { return curvatures_.size(); }
  /// The first element and the elements of each.
  const std::vector<std::pair<std::size_t, std::size_t>>& parameters() const { return parameters_; }
  std::size_t bucket_of(std::size_t element) const { return bucket_of_[element]; }
  double lr(int t) const { return lr_at(first_ + t); }
  double largest_lr(int t) const;  ///< of the run so far
  Vectors zeros() const { return Vectors(n, Vector(size(), 0.0)); }
  bool skips(std::size_t rank, int t) const;

  /// The sum of `terms`: a·x + b·y + …
  static Vectors sum(const std::vector<std::pair<double, const Vectors*>>& terms);
  static Vectors mean(const Vectors& v);
  Round round(int k);
  /// Σ_j W_ij v_j, and with W(k).
  static Vectors mixed(const Vectors& v, const Round& round);
  Vectors mixed(const Vectors& v, int k) { return mixed(v, round(k)); }

  Vectors gradients(const Vectors& at, int t) const;
  void clip(Vector& g) const;
  /// The gradients g: each rank's own at x, clipped; 0 where it overflowed.
  Vectors own_gradients(int t) const;
  /// The gradients with wd·x, for rows without U.
  Vectors decayed_gradients(int t) const;
  /// U(c, g) on every rank; c where it overflowed.
  Vectors updated(const Vectors& c, const Vectors& g, int t);
  /// A step with what `average` makes of the ranks' gradients; with an overflow on any rank, none.
  void step_with_average(int t, const Average& average);

  Vectors optimizer_states(std::size_t k) const;  ///< the k-th, of all ranks
  /// The optimizers' states become what `average` makes of them, where `part` says so (empty:
  /// everywhere).
  void average_states(const Average& average, const std::vector<bool>& part = {});
  void reset_optimizers();

  /// The elements of a bucket in its memory's order, 0 in its padding; and back.
  Vector message(const Vector& v, std::size_t bucket) const;
  void read_message(const Vector& message, std::size_t bucket, Vector& v) const;

 private:
  /// Lays out which element has which curvature, decays, and lies where.
  void lay_out();
  double lr_at(int step) const { return job_.lr_at ? job_.lr_at(step) : job_.lr; }

  const Job& job_;
  const PlainProblem* problem_;
  nlohmann::json algorithm_, topology_config_;
  std::string exchange_;
  int first_ = 0;  ///< the present algorithm's first step
  std::unique_ptr<Topology> topology_;
  Vector curvatures_;  // by element, as the next three
  std::vector<bool> decays_;
  std::vector<LayerExtent> layers_;  // by parameter, of the job's quadratics
  std::vector<std::size_t> bucket_of_, place_of_;
  std::vector<std::size_t> message_sizes_;  // by bucket
  std::vector<std::pair<std::size_t, std::size_t>> parameters_;
};

}  // namespace starling::test
