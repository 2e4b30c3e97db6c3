#include "comm/algorithms/averages.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/compression.h"
#include "comm/algorithms/disagreement.h"
#include "comm/algorithms/outer_steps.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

/// DiLoCo by gossip, without a collective and without a wait (after Factored Gossip DiLoCo, arXiv
/// 2606.22768). Every rank takes its outer steps from its own difference; the anchors φ are mixed
/// with neighbours, and an exchange of them has all steps up to the next outer step to arrive.
/// Outer step k = 0, 1, … of a bucket, [φ] being what round k - 1 made of φ (k = 0: φ itself):
///     Δ = φ - x      s = μs + D      φ' = [φ] - ν(nesterov ? D + μs : s)      x = φ'
/// D is Δ, or with mix_differences the mix of the ranks' Δ by round k, which is waited for; φ is
/// mixed by round k too then. With consensus_step γ a mix of c is c + γ([c] - c): a mixer of codes
/// does that itself, and of others `step` is γ.
class GossipDiLoCo final : public Averages {
 public:
  GossipDiLoCo(const AlgorithmSite& site, const OuterSettings& settings, bool mix_differences,
               double step)
      : Averages(site, std::make_unique<Alone>(site), settings.states),
        settings_(settings),
        step_(step),
        rule_(make_outer_rule(settings, 1.0, 0.0)),
        differences_(like_parameters()),
        anchors_(mix_tensors([](const Bucket& of) { return of.sync[0].numbers; }, site_.overlap,
                             site_.mixer)) {
    require(settings.fragments <= buckets(), "gossip_diloco", "{} fragments of {} buckets",
            settings.fragments, buckets());
    if (!mix_differences) return;
    mixed_differences_ = &make_mixer_for(
        [this](const Bucket& of) {
          return differences_[static_cast<std::size_t>(&of - site_.buckets.data())];
        },
        site_.overlap, site_.mixer.another());
  }

  void resume(std::int64_t step) override {
    Averages::resume(step);
    anchors_.resume(step, [&](int b) {
      const std::int64_t taken = settings_.taken(b, buckets(), step);
      return taken > 0 ? round_of_anchor(taken) : -1;
    });
  }
  void finish() override {
    Averages::finish();
    anchors_.settle();  // what has arrived stays until the next outer step
    outer_.join();
  }

 protected:
  bool meets(int b, std::int64_t t) const override { return settings_.meets(b, buckets(), t); }
  void first_step() override { copy_parameters_to(0); }

  void start(int b) override {
    {
      const StreamScope scope(site_.backend, StreamKind::kUpdate);
      site_.backend.weighted_sum({.in = {state(b, 0), bucket(b).parameters},
                                  .weight = {1.0, -1.0},
                                  .terms = 2,
                                  .out = difference(b)});
    }
    if (mixed_differences_) mixed_differences_->publish(b, info_.step, outer_step(b));
  }

  void meet(int b) override {
    const std::int64_t k = outer_step(b);
    if (mixed_differences_) {
      mix(b, mixed_differences_->receive(b, info_.step, k), difference(b));
      mixed_differences_->publish(b, info_.step, -1);
    }
    mix(b, anchors_.receive(b, info_.step, k > 0 ? round_of_anchor(k) : -1), state(b, 0));
    apply(b, *rule_, {state(b, 1), state(b, 0)}, difference(b), bucket(b).parameters);
    anchors_.publish(b, info_.step, round_of_anchor(k + 1));
  }

 private:
  void mix(int b, Mix with, const Tensor& numbers) {
    if (with.received.empty()) return;
    if (step_ != 1.0) with.take_part(step_);
    outer_.mix(b, info_, with, numbers);
  }
  Tensor& difference(int b) { return differences_[static_cast<std::size_t>(b)]; }
  /// k of the outer step that the bucket takes after this step.
  std::int64_t outer_step(int b) const { return settings_.taken(b, buckets(), info_.step + 1) - 1; }
  /// The round of the anchors that outer step k > 0 uses.
  std::int64_t round_of_anchor(std::int64_t k) const { return mixed_differences_ ? k : k - 1; }

  OuterSettings settings_;
  double step_;
  std::unique_ptr<OptimizerRule> rule_;
  std::vector<Tensor> differences_;  ///< Δ, then D, by bucket
  Mixer& anchors_;
  Mixer* mixed_differences_ = nullptr;  ///< null: differences are a rank's own
};

}  // namespace

AlgorithmPlan plan_gossip_diloco(ConfigSection& config) {
  OuterSettings settings = read_outer_steps(config, 50);
  const bool mix_differences = config.boolean(
      "mix_differences", false, "outer steps go by the neighbours' differences too, waited for");
  config.read("states", settings.states, {{"local", StatesAt::kLocal}, {"reset", StatesAt::kReset}},
              "the optimizer's states at an outer step: each keeps its own, or zero");
  check_outer_states(config, settings);
  std::vector<KeptState> states{{"anchor"}, {"outer_momentum"}};
  const Encoding encoding = read_encoding(config, states);
  AlgorithmCost cost{.exchanges = {{.every = settings.period, .hidden = settings.period}},
                     .disagreement = drift_of_averages(settings.period, false),
                     .tried = {{{"period", 16}, {"consensus_step", 0.5}},
                               {{"period", 48}, {"consensus_step", 0.5}},
                               {{"period", 16}, {"mix_differences", true}},
                               {{"period", 48}, {"mix_differences", true}}}};
  if (mix_differences) cost.exchanges.push_back({.every = settings.period});
  return {.title = "gossip DiLoCo",
          .topology = TopologyKind::kDoublyStochastic,
          .needs = {.fp16_fault = fp16_fault(settings.states),
                    .least_buckets = {"fragments", settings.fragments}},
          .states = states,
          .scratch = 1,
          .messages = {.encoding = encoding, .always = true},
          .steps = {.keys = {{"period", settings.period}},
                    .restarts_updates = settings.states == StatesAt::kReset,
                    .joins_every = settings.period},
          .growth = {[period = settings.period, step = encoding.step](const OptimizerRule&) {
            return DisagreementModel{
                .step =
                    [step](DisagreementModel::Numbers& z, const DisagreementModel::MixOne& mix) {
                      std::vector<double> own = z[0];
                      mix(z[0]);
                      for (std::size_t e = 0; e < own.size(); ++e)
                        z[0][e] = own[e] + step * (z[0][e] - own[e]);
                    },
                .steps = period};
          }},
          .cost = cost,
          .make = maker_of<GossipDiLoCo>(settings, mix_differences, 1.0),
          .by_exchange = [=](AlgorithmPlan& plan, const MixerKind& exchange) {
            if (!exchange.encodes) {
              plan.messages.encoding->step = 1.0;
              plan.make = maker_of<GossipDiLoCo>(settings, mix_differences, encoding.step);
            }
            set_learning(plan.cost,
                         measured_learning(
                             mix_differences ? OuterMix::kGossipOfDifferences : OuterMix::kGossip,
                             exchange, encoding.step));
          }};
}

}  // namespace starling
