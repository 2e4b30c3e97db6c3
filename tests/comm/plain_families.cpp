#include "plain_families.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/config.h"
#include "core/error.h"

namespace starling::test {
namespace {

using nlohmann::json;
using Vector = std::vector<double>;
using Vectors = std::vector<Vector>;  // [rank][element]
using Average = std::function<Vectors(const Vectors&)>;

/// semantics.md section 7: one rank's optimizer, its states and its s.
class PlainOptimizer {
 public:
  PlainOptimizer(const json& config, std::vector<bool> decays)
      : type_(config.value("type", "")),
        decays_(std::move(decays)),
        momentum_(config.value("momentum", 0.0)),
        nesterov_(config.value("nesterov", false)),
        beta1_(config.value("betas", Vector{0.9, 0.999})[0]),
        beta2_(config.value("betas", Vector{0.9, 0.999})[1]),
        eps_(config.value("eps", 1e-8)),
        noise_ranks_(config.value("noise_correction", 1.0)),
        weight_decay_(config.value("weight_decay", type_ == "adamw" ? 0.1 : 0.0)) {
    require(type_ == "sgd" || type_ == "adam" || type_ == "adamw", "test", "no plain rewriting of the optimizer '{}'", type_);
    states.assign(type_ == "sgd" ? 1 : 2, Vector(decays_.size(), 0.0));
  }

  /// U(c, g).
  Vector update(Vector c, Vector g, double lr) {
    ++s;
    const double step_size = lr / (1.0 - std::pow(beta1_, s)), root = std::sqrt(1.0 - std::pow(beta2_, s));
    for (std::size_t e = 0; e < c.size(); ++e) {
      const double decay = decays_[e] ? weight_decay_ : 0.0;
      if (type_ == "sgd") {
        double& u = states[0][e];
        g[e] += decay * c[e];
        u = momentum_ * u + g[e];
        c[e] -= lr * (nesterov_ ? g[e] + momentum_ * u : u);
      } else {
        if (type_ == "adam") g[e] += decay * c[e];
        if (type_ == "adamw") c[e] *= 1.0 - lr * decay;
        double &m = states[0][e], &v = states[1][e];
        m = beta1_ * m + (1.0 - beta1_) * g[e];
        v = beta2_ * v + (1.0 - beta2_) * g[e] * g[e];
        double corrected = v / (root * root);
        if (noise_ranks_ > 1.0) {
          const double mean = m / (1.0 - std::pow(beta1_, s)), share = (1.0 - beta1_) / (1.0 + beta1_);
          const double noise = std::max(corrected - mean * mean, 0.0) / (1.0 - share);
          corrected = std::max(corrected - (1.0 - 1.0 / noise_ranks_) * noise, corrected / noise_ranks_);
        }
        c[e] -= step_size * m / (std::sqrt(corrected) + eps_);
      }
    }
    return c;
  }

  double momentum() const { return momentum_; }
  bool nesterov() const { return nesterov_; }
  double weight_decay() const { return weight_decay_; }

  Vectors states;  ///< [state][element]
  int s = 0;       ///< updates so far

 private:
  std::string type_;
  std::vector<bool> decays_;
  double momentum_;
  bool nesterov_;
  double beta1_, beta2_, eps_, noise_ranks_, weight_decay_;
};

/// The keys of gossip, and what it carries from step to step.
struct PlainGossip {
  explicit PlainGossip(const json& keys)
      : atc(keys.value("order", "awc") == "atc"),
        interval(keys.value("interval", 1)),
        global_every(keys.value("global_every", 0)),
        mix_states(keys.value("mix_states", 0)),
        check_every(keys.value("check_every", 50)),
        global_above(keys.value("global_above", 0.0)) {
    const json mixing = keys.value("mixing", json(1.0));
    adaptive = mixing.is_object();
    alpha = adaptive ? mixing.value("min", 0.0) : mixing.get<double>();
    power = adaptive ? mixing.at("power").get<double>() : 0.0;
  }

  bool atc;
  int interval, global_every, mix_states, check_every;
  double global_above, alpha = 1.0, power = 0.0;
  bool adaptive = false;

  int exchanges = 0, rounds = 0;  ///< so far: all, and those that took a round of the topology
  double largest_lr = 0.0;
  int dropped = -1;                    ///< the step whose exchange was dropped
  double moved = 0.0, length = 0.0;    ///< of the last mix: Σ ‖what was mixed - what came out‖², Σ ‖what was mixed‖²
  bool exceeds = false, next = false;  ///< what the sums under way will say; an exchange to come is global
};

class Simulation {
 public:
  Simulation(const Job& job, int ranks, FamilyTrace* trace, const PlainProblem* problem)
      : job_(job), n_(static_cast<std::size_t>(ranks)), algorithm_(job.algorithm), trace_(trace), problem_(problem) {
    if (algorithm_.is_string()) algorithm_ = json{{"type", algorithm_}};
    if (problem) {
      x_ = problem->start;
      decays_ = problem->decays;
      bucket_of_ = problem->bucket_of;
      curvatures_.assign(decays_.size(), 1.0);
      buckets_ = 1 + *std::max_element(bucket_of_.begin(), bucket_of_.end());
      optimizers_.assign(n_, PlainOptimizer(job.optimizer, decays_));
      return;
    }
    lay_out();
    x_.assign(n_, Vector(size()));
    for (std::size_t i = 0; i < n_; ++i) {
      for (std::size_t e = 0; e < size(); ++e) x_[i][e] = start_value(static_cast<int>(i), job.start_apart, static_cast<std::int64_t>(e));
    }
    optimizers_.assign(n_, PlainOptimizer(job.optimizer, decays_));
  }

  Vectors run() {
    const std::string type = key<std::string>("type", "gossip");
    if (type == "gossip") {
      gossip();
    } else if (type == "qgm") {
      qgm();
    } else if (type == "decentlam") {
      decentlam();
    } else if (type == "gradient_tracking") {
      gradient_tracking();
    } else if (type == "momentum_tracking") {
      momentum_tracking();
    } else if (type == "exact_diffusion") {
      exact_diffusion();
    } else if (type == "push_sum") {
      push_sum();
    } else if (type == "allreduce") {
      for (int t = 0; t < job_.steps; ++t) {
        all_reduce_step(t, key("average", true));
        record({});
      }
    } else if (type == "local_sgd") {
      local_sgd();
    } else if (type == "slowmo") {
      slowmo();
    } else if (type == "diloco") {
      diloco();
    } else {
      fail(ExitCode::kInternal, "test", "no plain rewriting of '{}'", type);
    }
    return x_;
  }

 private:
  // What every family needs.

  /// Which element has which curvature, decays, and lies in which bucket.
  void lay_out() {
    std::vector<std::size_t> bucket(job_shapes().size());
    double bytes = 0.0;
    bool open = false;
    for (std::size_t p = job_shapes().size(); p-- > 0;) {  // gradients are ready in the reversed order
      if (!open) {
        ++buckets_;
        bytes = 0.0;
      }
      bucket[p] = buckets_ - 1;
      bytes += static_cast<double>((job_shapes()[p].elements() + 31) / 32 * 32) * (job_.dtype == DType::kFloat64 ? 8.0 : 4.0);
      open = bytes < job_.bucket_bytes;
    }
    for (std::size_t p = 0; p < job_shapes().size(); ++p) {
      const auto count = static_cast<std::size_t>(job_shapes()[p].elements());
      curvatures_.insert(curvatures_.end(), count, curvature(p));
      decays_.insert(decays_.end(), count, job_shapes()[p].rank() >= 2);
      bucket_of_.insert(bucket_of_.end(), count, bucket[p]);
    }
  }

  template <class T>
  T key(const char* name, T fallback) const {
    return algorithm_.value(name, fallback);
  }
  std::size_t size() const { return curvatures_.size(); }
  double lr(int t) const { return job_.lr_at ? job_.lr_at(t) : job_.lr; }
  Vectors zeros() const { return Vectors(n_, Vector(size(), 0.0)); }

  bool skips(std::size_t rank, int t) const {
    const std::array<int, 2> here{static_cast<int>(rank), t};
    return std::find(job_.overflows.begin(), job_.overflows.end(), here) != job_.overflows.end();
  }

  /// The sum of `terms`: a·x + b·y + …
  static Vectors sum(const std::vector<std::pair<double, const Vectors*>>& terms) {
    Vectors result = *terms.front().second;
    for (std::size_t i = 0; i < result.size(); ++i) {
      for (std::size_t e = 0; e < result[i].size(); ++e) {
        result[i][e] = 0.0;
        for (const auto& [factor, vectors] : terms) result[i][e] += factor * (*vectors)[i][e];
      }
    }
    return result;
  }

  Vectors gradients(const Vectors& x, int t) const {
    if (problem_) return problem_->gradients(x, t);
    Vectors g = zeros();
    for (std::size_t i = 0; i < n_; ++i) {
      const double steeper = 1.0 + job_.rank_curvature * static_cast<double>(i);
      for (std::size_t e = 0; e < size(); ++e) {
        g[i][e] = curvatures_[e] * steeper * (x[i][e] - target(static_cast<int>(i), static_cast<std::int64_t>(e)));
      }
    }
    return g;
  }

  void clip(Vector& g) const {
    if (job_.clip.norm <= 0.0) return;
    double squares = 0.0;
    for (const double v : g) squares += v * v;
    const double factor = std::min(1.0, job_.clip.norm / (std::sqrt(squares) + 1e-6));
    for (double& v : g) v *= factor;
  }

  /// g: each rank's own at x, clipped; 0 where it overflowed.
  Vectors own_gradients(const Vectors& x, int t) const {
    Vectors g = gradients(x, t);
    for (std::size_t i = 0; i < n_; ++i) {
      clip(g[i]);
      if (skips(i, t)) g[i].assign(size(), 0.0);
    }
    return g;
  }

  /// The same with wd·x, for rows without U.
  Vectors decayed_gradients(const Vectors& x, int t) const {
    Vectors g = own_gradients(x, t);
    for (std::size_t i = 0; i < n_; ++i) {
      for (std::size_t e = 0; e < size(); ++e) {
        if (decays_[e] && !skips(i, t)) g[i][e] += optimizers_[i].weight_decay() * x[i][e];
      }
    }
    return g;
  }

  /// U(c, g) on every rank; c where it overflowed.
  Vectors updated(const Vectors& c, const Vectors& g, int t) {
    Vectors result = c;
    for (std::size_t i = 0; i < n_; ++i) {
      if (!skips(i, t)) result[i] = optimizers_[i].update(c[i], g[i], lr(t));
    }
    return result;
  }

  /// Σ_j W_ij(k) v_j.
  Vectors mixed(const Vectors& v, int k) {
    if (!topology_) {  // the type may need none, and the job's not fit these ranks
      register_builtin_topologies();
      ConfigSection section(job_.topology, "test");
      topology_ = make_unchecked_topology(section, {static_cast<int>(n_), static_cast<int>(n_)});  // push-sum's need columns alone
    }
    const Round round = topology_->round(k);
    Vectors result(v.size(), Vector(v[0].size(), 0.0));
    for (std::size_t i = 0; i < n_; ++i) {
      for (const auto& [j, w] : Topology::row(round, static_cast<int>(i))) {
        for (std::size_t e = 0; e < v[i].size(); ++e) result[i][e] += w * v[static_cast<std::size_t>(j)][e];
      }
    }
    return result;
  }

  static Vectors mean(const Vectors& v) {
    Vector total(v[0].size(), 0.0);
    for (const Vector& of_rank : v) {
      for (std::size_t e = 0; e < total.size(); ++e) total[e] += of_rank[e];
    }
    for (double& value : total) value /= static_cast<double>(v.size());
    return Vectors(v.size(), total);
  }

  /// The optimizers' states become what `average` makes of them, where `part` says so (empty: everywhere).
  void average_states(const Average& average, const std::vector<bool>& part = {}) {
    for (std::size_t k = 0; k < optimizers_[0].states.size(); ++k) {
      Vectors of_ranks;
      for (const PlainOptimizer& optimizer : optimizers_) of_ranks.push_back(optimizer.states[k]);
      const Vectors averaged = average(of_ranks);
      for (std::size_t i = 0; i < n_; ++i) {
        for (std::size_t e = 0; e < size(); ++e) {
          if (part.empty() || part[e]) optimizers_[i].states[k][e] = averaged[i][e];
        }
      }
    }
  }

  /// `states` of local_sgd, slowmo and diloco, at an average.
  void settle_states(const Average& average, const std::vector<bool>& part = {}) {
    const std::string states = key<std::string>("states", "local");
    if (states == "average") average_states(average, part);
    if (states == "reset") optimizers_.assign(n_, PlainOptimizer(job_.optimizer, decays_));
  }

  void record(FamilyStep step) {
    if (!trace_) return;
    step.x = x_;
    trace_->push_back(std::move(step));
  }

  // Section 3.

  /// Counts an exchange; its round of the topology, or -1 where it is the mean over all ranks.
  static int take_round(PlainGossip& gossip) {
    const int k = gossip.exchanges++;
    const bool global = gossip.next || (gossip.global_every > 0 && (k + 1) % gossip.global_every == 0);
    gossip.next = false;
    return global ? -1 : gossip.rounds++;
  }

  /// [v]_k of gossip's next exchange, with the optimizers' states where it is their turn, and α.
  Vectors gossip_exchange(PlainGossip& gossip, const Vectors& v, int t) {
    const int round = take_round(gossip);
    const Average row = [&](const Vectors& what) { return round < 0 ? mean(what) : mixed(what, round); };
    const Vectors result = row(v);
    if (gossip.mix_states > 0 && gossip.exchanges % gossip.mix_states == 0) average_states(row);
    const double alpha = gossip_alpha(gossip, t);
    return sum({{1.0 - alpha, &v}, {alpha, &result}});
  }

  double gossip_alpha(const PlainGossip& gossip, int t) const {
    if (!gossip.adaptive) return gossip.alpha;
    const double share = gossip.largest_lr == 0.0 ? 1.0 : lr(t) / gossip.largest_lr;  // 0/0 = 1
    return std::max(gossip.alpha, std::pow(share, gossip.power));
  }

  static void note_distance(PlainGossip& gossip, const Vectors& before, const Vectors& after) {
    gossip.moved = gossip.length = 0.0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      for (std::size_t e = 0; e < before[i].size(); ++e) {
        gossip.moved += std::pow(before[i][e] - after[i][e], 2);
        gossip.length += std::pow(before[i][e], 2);
      }
    }
  }

  /// Sums that started check_every steps ago are known in this step.
  static void hear_of_sums(PlainGossip& gossip, int t) {
    if (gossip.global_above > 0.0 && t % gossip.check_every == 0 && gossip.exceeds) gossip.next = true;
  }
  static void start_sums(PlainGossip& gossip, int t) {
    if (gossip.global_above <= 0.0 || t % gossip.check_every != 0) return;
    gossip.exceeds = gossip.moved > 0.0 && std::sqrt(gossip.moved / gossip.length) > gossip.global_above;
  }

  void gossip_step(PlainGossip& gossip, int t) {
    gossip.largest_lr = std::max(gossip.largest_lr, lr(t));
    const Vectors g = own_gradients(x_, t);
    if (gossip.atc) {
      const Vectors h = updated(x_, g, t);
      hear_of_sums(gossip, t);
      x_ = h;
      if ((t + 1) % gossip.interval == 0) {
        x_ = gossip_exchange(gossip, h, t);
        note_distance(gossip, h, x_);
      }
      start_sums(gossip, t);
    } else {
      Vectors c = x_;
      if (t >= 1 && t % gossip.interval == 0 && t != gossip.dropped) {
        c = gossip_exchange(gossip, x_, t);
        note_distance(gossip, x_, c);
      }
      x_ = updated(c, g, t);
      hear_of_sums(gossip, t);  // the exchange that this step's mix used had started before
      start_sums(gossip, t);
    }
  }

  void gossip() {
    PlainGossip gossip(algorithm_);
    for (int t = 0; t < job_.steps; ++t) {
      gossip_step(gossip, t);
      record({});
    }
  }

  void qgm() {
    const double beta = optimizers_[0].momentum(), mu = key("mu", beta);
    const bool nesterov = optimizers_[0].nesterov(), atc = key<std::string>("order", "atc") == "atc";
    Vectors m = zeros();
    for (int t = 0; t < job_.steps; ++t) {
      const double eta = lr(t);
      const Vectors g = decayed_gradients(x_, t);
      Vectors s = sum({{beta, &m}, {1.0, &g}});
      if (nesterov) s = sum({{1.0, &g}, {beta, &s}});
      Vectors next;
      if (atc) {
        next = mixed(sum({{1.0, &x_}, {-eta, &s}}), t);
      } else {
        const Vectors c = t == 0 ? x_ : mixed(x_, t - 1);
        next = sum({{1.0, &c}, {-eta, &s}});
      }
      for (std::size_t i = 0; i < n_; ++i) {
        if (eta == 0.0 || skips(i, t)) continue;  // m is the optimizer's state
        for (std::size_t e = 0; e < size(); ++e) m[i][e] = mu * m[i][e] + (1.0 - mu) * (x_[i][e] - next[i][e]) / eta;
      }
      x_ = next;
      record({});
    }
  }

  void decentlam() {
    const double beta = optimizers_[0].momentum();
    Vectors m = zeros();
    for (int t = 0; t < job_.steps; ++t) {
      const double eta = lr(t);
      const Vectors g = decayed_gradients(x_, t);
      const Vectors c = mixed(sum({{1.0, &x_}, {-eta, &g}}), t);
      const Vectors next = sum({{1.0, &c}, {-eta * beta, &m}});
      for (std::size_t i = 0; i < n_; ++i) {
        if (eta == 0.0 || skips(i, t)) continue;
        for (std::size_t e = 0; e < size(); ++e) m[i][e] = (x_[i][e] - next[i][e]) / eta;
      }
      x_ = next;
      record({});
    }
  }

  void gradient_tracking() {
    Vectors y = zeros(), before = zeros();
    for (int t = 0; t < job_.steps; ++t) {
      Vectors g = own_gradients(x_, t);
      for (std::size_t i = 0; i < n_; ++i) {
        if (skips(i, t)) g[i] = before[i];
      }
      const Vectors heard = t == 0 ? y : mixed(y, t - 1), c = t == 0 ? x_ : mixed(x_, t - 1);
      y = sum({{1.0, &heard}, {-1.0, &before}, {1.0, &g}});
      x_ = updated(c, y, t);
      before = g;
      record({.g = g, .y = y});
    }
  }

  void momentum_tracking() {
    const double beta = optimizers_[0].momentum();
    Vectors m = zeros(), z = zeros();
    for (int t = 0; t < job_.steps; ++t) {
      const Vectors g = decayed_gradients(x_, t), before = m;
      for (std::size_t i = 0; i < n_; ++i) {
        if (skips(i, t)) continue;  // keeps m, the optimizer's state
        for (std::size_t e = 0; e < size(); ++e) m[i][e] = beta * m[i][e] + g[i][e];
      }
      const Vectors heard = t == 0 ? z : mixed(z, t - 1), mix = t == 0 ? x_ : mixed(x_, t - 1);
      const Vectors c = sum({{1.0, &heard}, {1.0, &before}});
      x_ = sum({{1.0, &mix}, {-lr(t), &m}, {lr(t), &c}});
      z = sum({{1.0, &c}, {-1.0, &m}});
      record({.y = c});
    }
  }

  void exact_diffusion() {
    const bool lazy = key("lazy", true);
    Vectors psi_before = x_;
    for (int t = 0; t < job_.steps; ++t) {
      const Vectors psi = updated(x_, own_gradients(x_, t), t);
      const Vectors moved = sum({{1.0, &x_}, {-1.0, &psi_before}}), corrected = sum({{1.0, &psi}, {1.0, &moved}});
      x_ = mixed(corrected, t);
      if (lazy) x_ = sum({{0.5, &corrected}, {0.5, &x_}});
      psi_before = psi;
      record({});
    }
  }

  void push_sum() {
    Vectors omega(n_, Vector(1, 1.0));
    for (int t = 0; t < job_.steps; ++t) {
      const Vectors g = own_gradients(x_, t);
      Vectors h = x_;
      for (std::size_t i = 0; i < n_; ++i) {
        for (double& value : h[i]) value *= omega[i][0];
      }
      x_ = mixed(updated(h, g, t), t);
      omega = mixed(omega, t);
      FamilyStep step;
      for (std::size_t i = 0; i < n_; ++i) {
        for (double& value : x_[i]) value /= omega[i][0];
        step.omega.push_back(omega[i][0]);
      }
      record(std::move(step));
    }
  }

  // Section 4.

  void all_reduce_step(int t, bool average) {
    for (std::size_t i = 0; i < n_; ++i) {
      if (skips(i, t)) return;  // the sum carries an overflow to all
    }
    Vectors g = mean(gradients(x_, t));
    for (std::size_t i = 0; i < n_; ++i) {
      for (double& value : g[i]) value *= average ? 1.0 : static_cast<double>(n_);
      clip(g[i]);
    }
    x_ = updated(x_, g, t);
  }

  void local_sgd() {
    const int period = key("period", 8), start = key("start", 0);
    const bool all = key<std::string>("average", "all") == "all";
    require(key<std::string>("gradients", "local") == "local", "test", "no plain rewriting of node gradients");
    for (int t = 0; t < job_.steps; ++t) {
      if (t < start) {
        all_reduce_step(t, true);
      } else {
        x_ = updated(x_, own_gradients(x_, t), t);
        if ((t + 1 - start) % period == 0) {
          const Average average = [&](const Vectors& v) { return all ? mean(v) : mixed(v, (t + 1 - start) / period - 1); };
          x_ = average(x_);
          settle_states(average);
        }
      }
      record({});
    }
  }

  void slowmo() {
    const int period = key("period", 48);
    const double beta = key("momentum", 0.5), alpha = key("slow_lr", 1.0);
    const bool mixes = key<std::string>("inner", "local") == "gossip";
    PlainGossip gossip(algorithm_);  // its keys stand beside slowmo's
    Vectors a = x_, u = zeros();
    for (int t = 0; t < job_.steps; ++t) {
      if (mixes) {
        gossip_step(gossip, t);
      } else {
        x_ = updated(x_, own_gradients(x_, t), t);
      }
      if ((t + 1) % period == 0) {
        const Vectors average = mean(x_);
        const double eta = lr(t);
        for (std::size_t i = 0; i < n_; ++i) {
          for (std::size_t e = 0; e < size(); ++e) {
            if (eta == 0.0) {
              a[i][e] = average[i][e];
            } else {
              u[i][e] = beta * u[i][e] + (a[i][e] - average[i][e]) / eta;
              a[i][e] -= alpha * eta * u[i][e];
            }
          }
        }
        x_ = a;
        if (mixes && !gossip.atc && (t + 1) % gossip.interval == 0) {
          take_round(gossip);
          gossip.dropped = t + 1;
        }
        settle_states(mean);
      }
      record({});
    }
  }

  void diloco() {
    const int period = key("period", 500), fragments = key("fragments", 1), delay = key("delay", 0), part = period / fragments;
    const double nu = key("outer_lr", 0.7), mu = key("outer_momentum", 0.9), alpha = key("blend", 0.0);
    const bool nesterov = key("outer_nesterov", true);
    Vectors a = x_, s = zeros(), arriving = zeros();
    for (int t = 0; t < job_.steps; ++t) {
      x_ = updated(x_, own_gradients(x_, t), t);
      for (int f = 0; f < fragments; ++f) {
        std::vector<bool> in(size());
        for (std::size_t e = 0; e < size(); ++e)
          in[e] = bucket_of_[e] * static_cast<std::size_t>(fragments) / buckets_ == static_cast<std::size_t>(f);
        if ((t + 1 - ((f + 1) * part - delay)) % period == 0) {
          const Vectors moved = mean(sum({{1.0, &a}, {-1.0, &x_}}));
          for (std::size_t i = 0; i < n_; ++i) {
            for (std::size_t e = 0; e < size(); ++e) {
              if (in[e]) arriving[i][e] = moved[i][e];
            }
          }
        }
        if ((t + 1 - (f + 1) * part) % period != 0 || t + 1 < (f + 1) * part) continue;
        for (std::size_t i = 0; i < n_; ++i) {
          for (std::size_t e = 0; e < size(); ++e) {
            if (!in[e]) continue;
            s[i][e] = mu * s[i][e] + arriving[i][e];
            a[i][e] -= nu * (nesterov ? arriving[i][e] + mu * s[i][e] : s[i][e]);
            x_[i][e] = (1.0 - alpha) * a[i][e] + alpha * x_[i][e];
          }
        }
        settle_states(mean, in);
      }
      record({});
    }
  }

  const Job& job_;
  std::size_t n_, buckets_ = 0;
  json algorithm_;
  FamilyTrace* trace_;
  const PlainProblem* problem_;
  Vector curvatures_;  // by element, as all three
  std::vector<bool> decays_;
  std::vector<std::size_t> bucket_of_;
  std::unique_ptr<Topology> topology_;
  Vectors x_;
  std::vector<PlainOptimizer> optimizers_;
};

}  // namespace

std::vector<std::vector<double>> run_plain_family(const Job& job, int ranks, FamilyTrace* trace, const PlainProblem* problem) {
  return Simulation(job, ranks, trace, problem).run();
}

}  // namespace starling::test
