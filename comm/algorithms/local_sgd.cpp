#include "comm/algorithms/averages.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/disagreement.h"
#include "comm/algorithms/gossip.h"

namespace starling {
namespace {

std::unique_ptr<Algorithm> inner_of(const AlgorithmSite& site, bool of_node) {
  const int per_node = of_node ? ranks_per_node(site) : 1;
  if (per_node == 1) return std::make_unique<Alone>(site);
  return make_node_all_reduce(site, per_node);
}

struct LocalSettings {
  std::int64_t period = 8, start = 0;
  std::int64_t delay = 0;  ///< steps that a mean has to arrive
  bool by_topology = false, node_gradients = false;
  StatesAt states = StatesAt::kLocal;

  bool meets(std::int64_t t) const { return t >= start && (t + 1 - start) % period == 0; }
};

/// Local SGD (Stich 2019, arXiv 1805.09767): x' = U(x, g); after steps t ≥ S with H | t + 1 - S the
/// mean of x, over all ranks or by a round of the topology. With a start it is post-local SGD (Lin
/// et al. 2020, arXiv 1808.07217). With a delay τ it is the mean of what x was τ steps before.
class LocalSgd final : public Averages {
 public:
  LocalSgd(const AlgorithmSite& site, const LocalSettings& settings)
      : Averages(site, inner_of(site, settings.node_gradients), settings.states, settings.delay),
        settings_(settings),
        tickets_(site.buckets.size()) {
    if (!settings.by_topology) return;
    site_.mixer.open({site_.buckets, site_.topology, site_.overlap, false, true});
    for (std::size_t k = 0; settings.states == StatesAt::kAverage && !site_.buckets.empty() &&
                            k < site_.buckets[0].states.size();
         ++k) {
      states_.push_back(&make_mixer_for([k](const Bucket& of) { return of.states[k]; }, true));
    }
  }

 protected:
  bool meets(int, std::int64_t t) const override { return settings_.meets(t); }
  void start(int b) override {
    if (settings_.delay > 0) return start_late(b);
    if (!settings_.by_topology) return Averages::start(b);
    site_.mixer.publish(b, info_.step, round());
    for (Mixer* states : states_) states->publish(b, info_.step, round());
  }
  void settle(int b) override { Algorithm::settle(tickets_[static_cast<std::size_t>(b)], b); }
  void meet(int b) override {
    if (settings_.delay > 0) return take_mean_of(b, state(b, 0), bucket(b).parameters);
    if (!settings_.by_topology) return take_mean(b, bucket(b).parameters);
    mix(site_.mixer, b, bucket(b).parameters);
  }
  void average_state(int b, std::size_t k) override {
    if (!settings_.by_topology) return Averages::average_state(b, k);
    mix(*states_[k], b, bucket(b).states[k]);
  }

 private:
  /// The next steps change the parameters, so the sum is of a copy.
  void start_late(int b) {
    const Tensor& sum = state(b, 0);
    const StreamScope scope(site_.backend, StreamKind::kUpdate);
    site_.backend.copy(bucket(b).parameters, sum);
    if (site_.transport.size() > 1) {
      tickets_[static_cast<std::size_t>(b)] =
          site_.transport.start_sum(sum, sum, {info_.step, b, info_.step});
    }
  }
  std::int64_t round() const { return (info_.step + 1 - settings_.start) / settings_.period - 1; }
  void mix(Mixer& mixer, int b, const Tensor& numbers) {
    outer_.mix(b, info_, mixer.receive(b, info_.step, round()), numbers);
    mixer.publish(b, info_.step, -1);
  }

  LocalSettings settings_;
  std::vector<Mixer*> states_;   ///< of the optimizer's states
  std::vector<Ticket> tickets_;  ///< by bucket: of sums with a delay
};

}  // namespace

AlgorithmPlan plan_local_sgd(ConfigSection& config) {
  LocalSettings settings;
  config.read("period", settings.period, Range::closed(1, 1e6),
              "steps from one average to the next");
  config.read("start", settings.start, Range::closed(0, 1e6),
              "before this step gradients are averaged instead, as by allreduce");
  config.read("delay", settings.delay, Range::closed(0, 1e6),
              "steps that a mean has to arrive; below period");
  config.read("average", settings.by_topology, {{"all", false}, {"topology", true}},
              "over all ranks, or by a round of the topology");
  if (settings.delay >= settings.period) {
    config.error("delay", "is {}, but averages are {} steps apart; allowed: < {}", settings.delay,
                 settings.period, settings.period);
  }
  if (settings.delay > 0 && settings.by_topology) {
    config.error("delay",
                 "is {}, but a mix by the topology is used at once; allowed: 0, or \"average\": "
                 "\"all\"; gossip_diloco's mixes have a period to arrive",
                 settings.delay);
  }
  config.read("gradients", settings.node_gradients, {{"local", false}, {"node", true}},
              "between averages: the rank's own, or the mean over its node");
  const std::int64_t ranks_per_node = read_ranks_per_node(config);
  if (ranks_per_node > 0 && !settings.node_gradients) {
    config.error("ranks_per_node",
                 "is for \"gradients\": \"node\", and they are local; set that, or leave it out");
  }
  settings.states = read_states(config);
  AlgorithmEquality equality{.mean_gradients_before = settings.start,
                             .rule_states = settings.states != StatesAt::kLocal};
  AlgorithmGrowth growth;
  AlgorithmCost cost = cost_of_mixing(false, settings.period);
  if (settings.by_topology) {
    growth.model = [period = settings.period](const OptimizerRule& rule) {
      return model_of_mixing(rule, {.interval = period, .adapt_then_combine = true});
    };
  } else {
    equality.after = [settings](std::int64_t steps, int, int) {
      return steps <= settings.start || settings.meets(steps - 1);
    };
    cost.exchanges[0].what = PlannedExchange::kModels;
    cost.exchanges[0].hidden = settings.delay;
  }
  cost.near_all_reduce = settings.delay == 0;  // a delay discards steps
  cost.tried = {{{"period", 2}}, {{"period", 4}}, {{"period", 32}}};
  return {
      .title = "local SGD",
      .topology = settings.by_topology ? TopologyKind::kDoublyStochastic : TopologyKind::kNone,
      .needs = {.rule_fault =
                    [of_nodes = settings.node_gradients](const OptimizerRule& rule) -> std::string {
                  return of_nodes && rule.facts().corrects_noise
                             ? "noise_correction is for a rank's own gradients, and these are a "
                               "node's"
                             : "";
                },
                .fp16_fault = fp16_fault(settings.states),
                .by_nodes = settings.node_gradients,
                .ranks_per_node = ranks_per_node},
      .states = settings.delay > 0 ? std::vector<KeptState>{{"sum"}} : std::vector<KeptState>{},
      .scratch = settings.node_gradients ? 1 : 0,
      .messages = {.always = settings.by_topology,
                   .mixes_states = settings.by_topology && settings.states == StatesAt::kAverage},
      .steps = {.keys = {{"period", settings.period, true, settings.start},
                         {"start", settings.start, false}},
                .restarts_updates = settings.states == StatesAt::kReset},
      .equality = equality,
      .growth = growth,
      .cost = cost,
      .make = [settings](const AlgorithmSite& site) {
        return after_warmup(site, settings.start, std::make_unique<LocalSgd>(site, settings));
      }};
}

}  // namespace starling
