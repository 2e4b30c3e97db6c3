#include "plain_families.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "core/error.h"
#include "plain_compressed.h"
#include "plain_run.h"

namespace starling::test {
namespace {

using nlohmann::json;

/// The keys of gossip, and what it carries from step to step.
struct PlainGossip {
  PlainGossip(const PlainRun& run, const std::string& format)
      : atc(run.key<std::string>("order", "awc") == "atc"),
        interval(run.key("interval", 1)),
        global_every(run.key("global_every", 0)),
        mix_states(run.key("mix_states", 0)),
        check_every(run.key("check_every", 50)),
        global_above(run.key("global_above", 0.0)),
        exchange(run, format) {
    const json mixing = run.key("mixing", json(1.0));
    adaptive = mixing.is_object();
    alpha = adaptive ? mixing.value("min", 0.0) : mixing.get<double>();
    power = adaptive ? mixing.at("power").get<double>() : 0.0;
  }

  bool atc;
  int interval, global_every, mix_states, check_every;
  double global_above, alpha = 1.0, power = 0.0;
  bool adaptive = false;
  PlainExchange exchange;

  int exchanges = 0, rounds = 0;  ///< so far: all, and those that took a round of the topology
  int dropped = -1;               ///< the step whose exchange was dropped
  /// Of the last mix: Σ ‖what was mixed - what came out‖², Σ ‖what was mixed‖²
  double moved = 0.0, length = 0.0;
  /// What the sums under way will say; an exchange to come is global
  bool exceeds = false, next = false;
};

class Simulation : public PlainRun {
 public:
  using PlainRun::PlainRun;

  /// One algorithm's steps.
  void train() {
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
      for (int t = 0; t < steps; ++t) {
        all_reduce_step(t, key("average", true));
      }
    } else if (type == "local_sgd") {
      local_sgd();
    } else if (type == "slowmo") {
      slowmo();
    } else if (type == "diloco") {
      diloco();
    } else if (type == "gossip_diloco") {
      gossip_diloco();
    } else if (!train_compressed(*this)) {
      fail(ExitCode::kInternal, "test", "no plain rewriting of '{}'", type);
    }
  }

 private:
  /// `states` of local_sgd, slowmo and diloco, at an average.
  void settle_states(const Average& average, const std::vector<bool>& part = {}) {
    const std::string states = key<std::string>("states", "local");
    if (states == "average") average_states(average, part);
    if (states == "reset") reset_optimizers();
  }

  // Section 3.

  /// Counts an exchange; its round of the topology, or -1 where it is the mean over all ranks.
  static int take_round(PlainGossip& gossip) {
    const int k = gossip.exchanges++;
    const bool global =
        gossip.next || (gossip.global_every > 0 && (k + 1) % gossip.global_every == 0);
    gossip.next = false;
    return global ? -1 : gossip.rounds++;
  }

  /// [v]_k of gossip's next exchange, with the optimizers' states where it is their turn, and α.
  Vectors gossip_exchange(PlainGossip& gossip, const Vectors& v, int t) {
    const int k = take_round(gossip);
    const Vectors result = gossip.exchange.mixed(*this, v, k < 0 ? everyone() : round(k));
    if (gossip.mix_states > 0 && gossip.exchanges % gossip.mix_states == 0) {
      average_states(
          [&](const Vectors& states) { return k < 0 ? mean(states) : mixed(states, k); });
    }
    const double alpha = gossip_alpha(gossip, t);
    return sum({{1.0 - alpha, &v}, {alpha, &result}});
  }

  /// The round that is the mean over all ranks.
  Round everyone() const {
    Group all{{}, 1.0 / static_cast<double>(n)};
    for (std::size_t i = 0; i < n; ++i) all.ranks.push_back(static_cast<int>(i));
    return {.groups = {all}, .rows = {}};
  }

  double gossip_alpha(const PlainGossip& gossip, int t) const {
    if (!gossip.adaptive) return gossip.alpha;
    // 0/0 = 1
    const double largest = largest_lr(t), share = largest == 0.0 ? 1.0 : lr(t) / largest;
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
    if (gossip.global_above > 0.0 && t % gossip.check_every == 0 && gossip.exceeds)
      gossip.next = true;
  }
  static void start_sums(PlainGossip& gossip, int t) {
    if (gossip.global_above <= 0.0 || t % gossip.check_every != 0) return;
    gossip.exceeds =
        gossip.moved > 0.0 && std::sqrt(gossip.moved / gossip.length) > gossip.global_above;
  }

  void gossip_step(PlainGossip& gossip, int t) {
    const Vectors g = own_gradients(t);
    if (gossip.atc) {
      const Vectors h = updated(x, g, t);
      hear_of_sums(gossip, t);
      x = h;
      if ((t + 1) % gossip.interval == 0) {
        x = gossip_exchange(gossip, h, t);
        note_distance(gossip, h, x);
      }
      start_sums(gossip, t);
    } else {
      Vectors c = x;
      if (t >= 1 && t % gossip.interval == 0 && t != gossip.dropped) {
        c = gossip_exchange(gossip, x, t);
        note_distance(gossip, x, c);
      }
      x = updated(c, g, t);
      hear_of_sums(gossip, t);  // the exchange that this step's mix used had started before
      start_sums(gossip, t);
    }
  }

  void gossip() {
    PlainGossip gossip(*this, exchange());
    for (int t = 0; t < steps; ++t) {
      gossip_step(gossip, t);
    }
  }

  void qgm() {
    const double beta = optimizers[0].rule.momentum, mu = key("mu", beta);
    const bool nesterov = optimizers[0].rule.nesterov,
               atc = key<std::string>("order", "atc") == "atc";
    PlainExchange messages(*this, exchange());
    for (int t = 0; t < steps; ++t) {
      const double eta = lr(t);
      const Vectors g = decayed_gradients(t), m = optimizer_states(0);
      Vectors s = sum({{beta, &m}, {1.0, &g}});
      if (nesterov) s = sum({{1.0, &g}, {beta, &s}});
      Vectors next;
      if (atc) {
        next = messages.mixed(*this, sum({{1.0, &x}, {-eta, &s}}), round(t));
      } else {
        const Vectors c = t == 0 ? x : messages.mixed(*this, x, round(t - 1));
        next = sum({{1.0, &c}, {-eta, &s}});
      }
      for (std::size_t i = 0; i < n; ++i) {
        if (eta == 0.0 || skips(i, t)) continue;  // m is the optimizer's state
        for (std::size_t e = 0; e < size(); ++e) {
          optimizers[i].states[0][e] = mu * m[i][e] + (1.0 - mu) * (x[i][e] - next[i][e]) / eta;
        }
      }
      x = next;
    }
  }

  void decentlam() {
    const double beta = optimizers[0].rule.momentum;
    for (int t = 0; t < steps; ++t) {
      const double eta = lr(t);
      const Vectors g = decayed_gradients(t), m = optimizer_states(0);
      const Vectors c = mixed(sum({{1.0, &x}, {-eta, &g}}), t);
      const Vectors next = sum({{1.0, &c}, {-eta * beta, &m}});
      for (std::size_t i = 0; i < n; ++i) {
        if (eta == 0.0 || skips(i, t)) continue;
        for (std::size_t e = 0; e < size(); ++e)
          optimizers[i].states[0][e] = (x[i][e] - next[i][e]) / eta;
      }
      x = next;
    }
  }

  void gradient_tracking() {
    Vectors y = zeros(), before = zeros();
    for (int t = 0; t < steps; ++t) {
      Vectors g = own_gradients(t);
      for (std::size_t i = 0; i < n; ++i) {
        if (skips(i, t)) g[i] = before[i];
      }
      const Vectors heard = t == 0 ? y : mixed(y, t - 1), c = t == 0 ? x : mixed(x, t - 1);
      y = sum({{1.0, &heard}, {-1.0, &before}, {1.0, &g}});
      x = updated(c, y, t);
      before = g;
    }
  }

  void momentum_tracking() {
    const double beta = optimizers[0].rule.momentum;
    Vectors z = zeros();
    for (int t = 0; t < steps; ++t) {
      const Vectors g = decayed_gradients(t), before = optimizer_states(0);
      for (std::size_t i = 0; i < n; ++i) {
        if (skips(i, t)) continue;  // keeps m, the optimizer's state
        for (std::size_t e = 0; e < size(); ++e)
          optimizers[i].states[0][e] = beta * before[i][e] + g[i][e];
      }
      const Vectors m = optimizer_states(0), mix = t == 0 ? x : mixed(x, t - 1);
      Vectors c = zeros();
      if (t > 0) {
        const Vectors heard = mixed(z, t - 1);
        c = sum({{1.0, &heard}, {1.0, &before}});
      }
      x = sum({{1.0, &mix}, {-lr(t), &m}, {lr(t), &c}});
      z = sum({{1.0, &c}, {-1.0, &m}});
    }
  }

  void exact_diffusion() {
    const bool lazy = key("lazy", true);
    Vectors psi_before = x;
    for (int t = 0; t < steps; ++t) {
      const Vectors psi = updated(x, own_gradients(t), t);
      const Vectors moved = sum({{1.0, &x}, {-1.0, &psi_before}}),
                    corrected = sum({{1.0, &psi}, {1.0, &moved}});
      x = mixed(corrected, t);
      if (lazy) x = sum({{0.5, &corrected}, {0.5, &x}});
      psi_before = psi;
    }
  }

  void push_sum() {
    Vectors omega(n, Vector(1, 1.0));
    for (int t = 0; t < steps; ++t) {
      if (resets_omega()) omega.assign(n, Vector(1, 1.0));
      const Vectors g = own_gradients(t);
      Vectors h = x;
      for (std::size_t i = 0; i < n; ++i) {
        for (double& value : h[i]) value *= omega[i][0];
      }
      x = mixed(updated(h, g, t), t);
      omega = mixed(omega, t);
      for (std::size_t i = 0; i < n; ++i) {
        for (double& value : x[i]) value /= omega[i][0];
      }
    }
    for (std::size_t i = 0; i < n && hands_over; ++i) {  // the mean to come is Σ ωz/n
      for (double& value : x[i]) value *= omega[i][0];
    }
  }

  // Section 4.

  void all_reduce_step(int t, bool average) {
    step_with_average(t, [&](const Vectors& g) {
      const Vectors result = mean(g);
      return average ? result : sum({{static_cast<double>(n), &result}});
    });
  }

  /// Each rank's is the mean over its node's.
  Vectors node_gradients(int t) const {
    const Vectors g = gradients(x, t);
    Vectors means;
    const std::size_t per_node = ranks_per_node();
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t first = i / per_node * per_node;
      Vector of_node(size());
      for (std::size_t j = first; j < first + per_node; ++j) {
        require(!skips(j, t), "test", "no plain rewriting of an overflow in a node");
        for (std::size_t e = 0; e < size(); ++e)
          of_node[e] += g[j][e] / static_cast<double>(per_node);
      }
      clip(of_node);
      means.push_back(of_node);
    }
    return means;
  }

  void local_sgd() {
    const int period = key("period", 8), start = key("start", 0), delay = key("delay", 0);
    const bool all = key<std::string>("average", "all") == "all";
    const bool by_nodes = key<std::string>("gradients", "local") == "node";
    Vectors late;
    for (int t = 0; t < steps; ++t) {
      if (t < start) {
        all_reduce_step(t, true);
        continue;
      }
      x = updated(x, by_nodes ? node_gradients(t) : own_gradients(t), t);
      if ((t + 1 - start + delay) % period == 0) late = x;
      if ((t + 1 - start) % period != 0) continue;
      const Average average = [&](const Vectors& v) {
        return all ? mean(v) : mixed(v, (t + 1 - start) / period - 1);
      };
      x = average(late);
      late.clear();
      settle_states(average);
    }
    if (hands_over && !late.empty()) x = mean(late);
  }

  void slowmo() {
    const int period = key("period", 48);
    const double beta = key("momentum", 0.5), alpha = key("slow_lr", 1.0);
    const bool mixes = key<std::string>("inner", "local") == "gossip";
    PlainGossip gossip(*this, "fp32");  // its keys stand beside slowmo's
    Vectors a = x, u = zeros();
    for (int t = 0; t < steps; ++t) {
      if (mixes) {
        gossip_step(gossip, t);
      } else {
        x = updated(x, own_gradients(t), t);
      }
      if ((t + 1) % period == 0) {
        const Vectors average = mean(x);
        const double eta = lr(t);
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t e = 0; e < size(); ++e) {
            if (eta == 0.0) {
              a[i][e] = average[i][e];
            } else {
              u[i][e] = beta * u[i][e] + (a[i][e] - average[i][e]) / eta;
              a[i][e] -= alpha * eta * u[i][e];
            }
          }
        }
        x = a;
        if (mixes && !gossip.atc && (t + 1) % gossip.interval == 0) {
          take_round(gossip);
          gossip.dropped = t + 1;
        }
        settle_states(mean);
      }
    }
  }

  // Section 11.
  void gossip_diloco() {
    const int period = key("period", 50), fragments = key("fragments", 1),
              part = period / fragments;
    const double nu = key("outer_lr", 0.7), mu = key("outer_momentum", 0.9);
    const bool nesterov = key("outer_nesterov", true), mixes = key("mix_differences", false);
    PlainExchange anchors(*this, exchange()), differences = anchors.without_feedback();
    Vectors a = x, s = zeros();
    for (int t = 0; t < steps; ++t) {
      x = updated(x, own_gradients(t), t);
      for (int f = 0; f < fragments; ++f) {
        const int since = t + 1 - (f + 1) * part, k = since / period;
        if (since < 0 || since % period != 0) continue;
        Vectors d = sum({{1.0, &a}, {-1.0, &x}});
        if (mixes) d = differences.mixed(*this, d, round(k));
        const Vectors c = k == 0 ? a : anchors.mixed(*this, a, round(mixes ? k : k - 1));
        const std::vector<bool> in = in_fragment(f, fragments);
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t e = 0; e < size(); ++e) {
            if (!in[e]) continue;
            s[i][e] = mu * s[i][e] + d[i][e];
            x[i][e] = a[i][e] = c[i][e] - nu * (nesterov ? d[i][e] + mu * s[i][e] : s[i][e]);
          }
        }
        settle_states(mean, in);
      }
    }
  }

  std::vector<bool> in_fragment(int f, int fragments) const {
    std::vector<bool> in(size());
    for (std::size_t e = 0; e < size(); ++e)
      in[e] = bucket_of(e) * static_cast<std::size_t>(fragments) / buckets ==
              static_cast<std::size_t>(f);
    return in;
  }

  void diloco() {
    const int period = key("period", 500), fragments = key("fragments", 1), delay = key("delay", 0),
              part = period / fragments;
    const bool sparse = exchange() == "sparse";
    const double nu = key("outer_lr", sparse ? 1.0 : 0.7),
                 mu = key("outer_momentum", sparse ? 0.0 : 0.9), alpha = key("blend", 0.0),
                 decay = key("error_feedback", sparse) ? key("error_decay", 0.95) : 0.0;
    const bool nesterov = key("outer_nesterov", true);
    ChunkedMean encoded(*this, {exchange(), key("block", std::size_t{256})}, decay);
    GatheredMean largest(*this, decay);
    Vectors a = x, s = zeros(), arriving = zeros();
    std::vector<bool> flying(static_cast<std::size_t>(fragments), false);
    const auto apply = [&](int f) {
      const std::vector<bool> in = in_fragment(f, fragments);
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t e = 0; e < size(); ++e) {
          if (!in[e]) continue;
          s[i][e] = mu * s[i][e] + arriving[i][e];
          a[i][e] -= nu * (nesterov ? arriving[i][e] + mu * s[i][e] : s[i][e]);
          x[i][e] = (1.0 - alpha) * a[i][e] + alpha * x[i][e];
        }
      }
      settle_states(mean, in);
      flying[static_cast<std::size_t>(f)] = false;
    };
    for (int t = 0; t < steps; ++t) {
      x = updated(x, own_gradients(t), t);
      for (int f = 0; f < fragments; ++f) {
        if ((t + 1 - ((f + 1) * part - delay)) % period == 0) {
          const std::vector<bool> in = in_fragment(f, fragments);
          const Vectors d = sum({{1.0, &a}, {-1.0, &x}});
          const auto takes = [&](std::size_t b) {
            return b * static_cast<std::size_t>(fragments) / buckets == static_cast<std::size_t>(f);
          };
          const Vectors moved = exchange() == "fp32" ? mean(d)
                                : sparse             ? largest(d, takes)
                                                     : encoded(d, takes);
          for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t e = 0; e < size(); ++e) {
              if (in[e]) arriving[i][e] = moved[i][e];
            }
          }
          flying[static_cast<std::size_t>(f)] = true;
        }
        if ((t + 1 - (f + 1) * part) % period == 0 && t + 1 >= (f + 1) * part) apply(f);
      }
    }
    for (int f = 0; f < fragments && hands_over; ++f) {
      if (flying[static_cast<std::size_t>(f)]) apply(f);
    }
  }
};

}  // namespace

std::vector<std::vector<double>> run_plain_family(const Job& job, int ranks,
                                                  const PlainProblem* problem) {
  Simulation run(job, ranks, problem);
  std::vector<Switch> phases{{0, job.algorithm, job.topology}};
  phases.insert(phases.end(), job.switches.begin(), job.switches.end());
  for (std::size_t p = 0; p < phases.size(); ++p) {
    const bool last = p + 1 == phases.size();
    const int end = last ? job.steps : phases[p + 1].step;
    require(last || (end > phases[p].step && end < job.steps), "test", "a switch in step {} of {}",
            end, job.steps);
    if (p > 0) run.hand_over();
    run.begin(phases[p], end, last);
    run.train();
  }
  return run.x;
}

}  // namespace starling::test
