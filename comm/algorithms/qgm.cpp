#include "comm/algorithms/bucketwise.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/compression.h"
#include "comm/algorithms/disagreement.h"
#include "comm/algorithms/gossip.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

/// Quasi-global momentum (Lin et al. 2021, arXiv 2102.04761): the momentum follows how the mixed
/// parameters moved, not the rank's own gradients. s = βm + g, with nesterov g + β(βm + g); m is
/// sgd's buffer.
///     atc:  x' = [x - ηs]_t         awc:  x' = [x]_(t-1) - ηs         m' = μm + (1-μ)(x - x')/η
/// DecentLaM (Yuan et al. 2021, arXiv 2104.11981), with μ = 0, mixes the step along the gradient
/// but not the one along the momentum, so that the momentum does not enlarge the bias of ranks with
/// other data:
///     x' = [x - ηg]_t - ηβm        m' = (x - x')/η
/// Where η = 0, m stays.
class FollowedMomentum final : public Bucketwise {
 public:
  enum class Order { kAdaptThenCombine, kCombineWhileAdapting, kGradientAlone };

  FollowedMomentum(const AlgorithmSite& site, Order order, double mu)
      : Bucketwise(site),
        atc_(order != Order::kCombineWhileAdapting),
        glides_after_(order == Order::kGradientAlone),
        before_(like_parameters()) {
    const rules::Sgd sgd = sgd_of(site.rule);
    const double beta = sgd.momentum, wd = sgd.weight_decay;
    // s = of_m·m + of_g·g
    const double of_m = sgd.nesterov ? beta * beta : beta, of_g = sgd.nesterov ? 1.0 + beta : 1.0;
    // p is x or the mix; the states are the previous x, and m. If gradients may overflow, the part
    // along m is a separate pass.
    both_ = make_linear_rule(2, 0, [=](double lr) {
      return LinearTerms{.x = {.p = 1, .s = {0, -lr * of_m}, .g = -lr * of_g}, .decay_s = {wd, 0}};
    });
    descend_ = make_linear_rule(1, 0, [=](double lr) {
      return LinearTerms{.x = {.p = 1, .g = -lr * of_g}, .decay_s = {wd, 0}};
    });
    glide_ = make_linear_rule(1, 0, [=](double lr) {
      return LinearTerms{.x = {.p = 1, .s = {-lr * of_m, 0}}};
    });
    // p is m, the states are x' and what x was before.
    follow_ = make_linear_rule(2, 0, [=](double lr) {
      if (lr == 0.0) return LinearTerms{};
      return LinearTerms{.x = {.p = mu, .s = {-(1.0 - mu) / lr, (1.0 - mu) / lr}}};
    });
    site_.mixer.open(
        {site_.buckets, site_.topology, site_.overlap, site_.start_at_begin && !atc_, atc_});
  }

  void finish() override {
    site_.mixer.settle();
    updater_.join();
  }
  void resume(std::int64_t step) override {
    finish();
    if (!atc_) site_.mixer.resume(step, step - 1);
  }

 protected:
  void start_step() override {
    if (!atc_) site_.mixer.begin(info_.step, info_.step - 1);
  }
  void update(int b) override {
    on_update_stream(site_.backend, [&] { site_.backend.copy(bucket(b).parameters, before(b)); });
    if (atc_) {
      move(b, {});
    } else {
      move(b, site_.mixer.receive(b, info_.step, info_.step - 1));
      follow(b);
    }
    site_.mixer.publish(b, info_.step, info_.step);
  }
  void complete() override {
    for (int b = 0; atc_ && b < buckets(); ++b) {
      const Mix& mix = site_.mixer.receive(b, info_.step, info_.step);
      if (glides_after_ && has_momentum(b)) {
        glide(b, mix);
      } else {
        updater_.mix(b, info_, mix);
      }
      site_.mixer.publish(b, info_.step, -1);
      follow(b);
    }
  }

 private:
  Tensor& before(int b) { return before_[static_cast<std::size_t>(b)]; }
  bool has_momentum(int b) { return !bucket(b).states.empty(); }

  void move(int b, const Mix& mix) {
    if (!has_momentum(b) || glides_after_)
      return updater_.update(b, info_, mix, {.rule = descend_.get(), .states = {before(b)}});
    const Tensor& m = bucket(b).states[0];
    if (!site_.check_overflow)
      return updater_.update(b, info_, mix, {.rule = both_.get(), .states = {before(b), m}});
    glide(b, mix);
    const Tensor& x = bucket(b).parameters;
    updater_.update(b, info_, {}, {.rule = descend_.get(), .states = {before(b)}, .numbers = x});
  }
  /// The mix and the step along the momentum, which a rank whose gradients overflowed makes too.
  void glide(int b, const Mix& mix) {
    const Tensor& m = bucket(b).states[0];
    updater_.update(b, info_, mix,
                    {.rule = glide_.get(), .states = {m}, .gradient = m, .always = true});
  }
  void follow(int b) {
    if (!has_momentum(b)) return;
    const Tensor &m = bucket(b).states[0], &x = bucket(b).parameters;
    updater_.update(b, info_, {},
                    {.rule = follow_.get(), .states = {x, before(b)}, .numbers = m, .gradient = x});
  }

  bool atc_;           ///< an exchange ends in the step in which it starts
  bool glides_after_;  ///< DecentLaM
  std::unique_ptr<OptimizerRule> both_, descend_, glide_, follow_;
  std::vector<Tensor> before_;  ///< by bucket
};

/// z is {x, m}.
DisagreementModel model(const rules::Sgd& sgd, bool atc, double mu) {
  const double of_m = sgd.nesterov ? sgd.momentum * sgd.momentum : sgd.momentum;
  return {1, [=](auto& z, const auto& mix) {
            const std::vector<double> before = z[0];
            if (!atc) mix(z[0]);
            add(z[0], -of_m, z[1]);
            if (atc) mix(z[0]);
            scale(z[1], mu);
            add(z[1], 1.0 - mu, before);
            add(z[1], mu - 1.0, z[0]);
          }};
}

}  // namespace

AlgorithmPlan plan_qgm(ConfigSection& config) {
  const bool atc =
      config.choice("order", "atc", {"atc", "awc"},
                    "atc: update first, then mix, and wait for it; awc: as gossip's") == "atc";
  const nlohmann::json given =
      config.raw("mu", "number or text",
                 "how much of the momentum stays, the rest follows the parameters: >= 0 and < 1, "
                 "or momentum (default), the optimizer's");
  if (given.is_null()) config.resolve("mu", "momentum");
  const bool own = given.is_number();
  const double mu = own ? given.get<double>() : 0.0;
  if (!own && !given.is_null() && given != "momentum")
    config.error("mu", "is {}; allowed: a number >= 0 and < 1, or momentum", given.dump());
  if (mu < 0.0 || mu >= 1.0) config.error("mu", "is {}; allowed: >= 0 and < 1, or momentum", mu);
  std::vector<KeptState> states;
  const Encoding encoding = read_encoding(config, states);
  return {.title = "quasi-global momentum",
          .topology = TopologyKind::kDoublyStochastic,
          .needs = {.optimizers = {"sgd"}},
          .states = states,
          .scratch = 1,
          .messages = {.encoding = encoding, .always = atc},
          .steps = {.period = 1},
          .growth = {[=](const OptimizerRule& rule) {
            return model(sgd_of(rule), atc, own ? mu : sgd_of(rule).momentum);
          }},
          .cost = cost_of_mixing(!atc),
          .make = [=](const AlgorithmSite& site) {
            using Order = FollowedMomentum::Order;
            return std::make_unique<FollowedMomentum>(
                site, atc ? Order::kAdaptThenCombine : Order::kCombineWhileAdapting,
                own ? mu : sgd_of(site.rule).momentum);
          }};
}

AlgorithmPlan plan_decentlam(ConfigSection&) {
  return {.title = "DecentLaM",
          .topology = TopologyKind::kSymmetricFixed,
          .needs = {.optimizers = {"sgd"}, .rule_fault = nesterov_fault},
          .scratch = 1,
          .messages = {.always = true},
          .steps = {.period = 1},
          // Without gradients it mixes what it then takes the momentum from, as order awc does.
          .growth = {[](const OptimizerRule& rule) { return model(sgd_of(rule), false, 0.0); }},
          .cost = cost_of_mixing(false),
          .make = maker_of<FollowedMomentum>(FollowedMomentum::Order::kGradientAlone, 0.0)};
}

}  // namespace starling
