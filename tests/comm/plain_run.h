#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plain_families.h"
#include "tests/comm/support.h"
#include "tests/kernels/layer_reference.h"
#include "tests/support/plain_rule.h"
#include "topology/topology.h"

namespace starling::test {

using Vector = std::vector<double>;
using Vectors = std::vector<Vector>;  ///< [rank][element]
using Average = std::function<Vectors(const Vectors&)>;

/// One rank's optimizer: a rule, its states and its s.
class PlainOptimizer {
 public:
  /// `layers`: where the parameters lie, for Muon, which needs their shapes.
  PlainOptimizer(const nlohmann::json& config, std::vector<bool> decays,
                 std::vector<LayerExtent> layers = {})
      : decays_(std::move(decays)), layers_(std::move(layers)) {
    if (config.value("type", "") == "muon") {
      muon_ = LayerReference{.type = "muon",
                             .momentum = config.value("momentum", 0.95),
                             .eps = config.value("eps", 1e-8),
                             .weight_decay = config.value("weight_decay", 0.1),
                             .nesterov = config.value("nesterov", true)};
      require(!layers_.empty(), "test", "muon on a problem without shapes");
    } else {
      rule = PlainRule(config);
    }
    const std::size_t count = rule.accumulates() ? 3 : rule.type == "sgd" && !muon_ ? 1 : 2;
    states.assign(count, std::vector<double>(decays_.size(), 0.0));
  }

  /// U(c, g).
  std::vector<double> update(std::vector<double> c, const std::vector<double>& g, double lr) {
    ++s;
    if (muon_) {
      for (const LayerExtent& layer : layers_) update_layer(layer, c, g, lr);
      return c;
    }
    std::array<double*, 3> of_element{};
    for (std::size_t e = 0; e < c.size(); ++e) {
      for (std::size_t k = 0; k < states.size(); ++k) of_element[k] = &states[k][e];
      c[e] = rule.step(c[e], g[e], of_element, decays_[e], lr, s);
    }
    return c;
  }
  double weight_decay(std::size_t element) const {
    return decays_[element] ? rule.weight_decay : 0.0;
  }

  PlainRule rule;
  std::vector<std::vector<double>> states;  ///< [state][element]
  int s = 0;                                ///< updates so far

 private:
  void update_layer(const LayerExtent& layer, std::vector<double>& c, const std::vector<double>& g,
                    double lr) {
    const auto part = [&](const std::vector<double>& v) {
      return std::vector<double>(v.begin() + layer.first, v.begin() + layer.first + layer.elements);
    };
    std::vector<double> p = part(c), first = part(states[0]), second = part(states[1]);
    muon_->step(p, part(g), first, second, layer, lr, s);
    std::copy(p.begin(), p.end(), c.begin() + layer.first);
    std::copy(first.begin(), first.end(), states[0].begin() + layer.first);
    std::copy(second.begin(), second.end(), states[1].begin() + layer.first);
  }

  std::optional<LayerReference> muon_;
  std::vector<bool> decays_;
  std::vector<LayerExtent> layers_;
};

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
