#include "comm/algorithms/averages.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/coded_mean.h"
#include "comm/algorithms/disagreement.h"
#include "comm/algorithms/outer_steps.h"
#include "core/error.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

struct DiLoCoSettings : OuterSettings {
  std::int64_t delay = 0;  ///< steps that a mean has to arrive
  double blend = 0.0;
  DifferenceCode code;
  std::size_t delta() const { return 2; }  ///< the states' places
  std::size_t residual() const { return delay > 0 ? 3 : 2; }
};

/// DiLoCo (Douillard et al. 2023, arXiv 2311.08105), with fragments and delay as Streaming DiLoCo
/// has them (2501.18512). Bucket b of B is in fragment f = floor(bF/B). After steps with t + 1 ≡
/// (f+1)H/F - τ (mod H) the mean Δ̄ of Δ = a - x starts; τ steps later
///     s = μs + Δ̄      a = a - ν(nesterov ? Δ̄ + μs : s)      x = (1-α)a + αx      a(0) = x(0)
/// With a code the mean is EncodedMean's, in two halves: the second starts in the outer step, or
/// when half of the delay has passed. Sparse differences are gathered, in one exchange.
class DiLoCo final : public Averages {
 public:
  DiLoCo(const AlgorithmSite& site, const DiLoCoSettings& settings)
      : Averages(site, std::make_unique<Alone>(site), settings.states, settings.delay),
        settings_(settings),
        encodes_(settings.code.encodes() && ranks() > 1),
        rule_(make_outer_rule(settings, encodes_ ? 1.0 : means_.share(), settings.blend)) {
    require(settings.fragments <= buckets(), "diloco", "{} fragments of {} buckets",
            settings.fragments, buckets());
    if (settings.delay == 0) deltas_ = like_parameters();
    for (int b = 0; settings.delay > 0 && b < buckets(); ++b)
      deltas_.push_back(state(b, settings.delta()));
    tickets_.resize(deltas_.size());
    if (!encodes_) return;
    Residuals residuals{.decay = settings.code.error_decay};
    for (int b = 0; settings.code.error_decay > 0.0 && b < buckets(); ++b) {
      residuals.of_numbers.push_back(state(b, settings.residual()));
      if (!settings.code.sparse) residuals.of_chunks.push_back(state(b, settings.residual() + 1));
    }
    if (settings.code.sparse)
      encoded_ = std::make_unique<SparseMean>(site, settings.code, residuals);
    else
      encoded_ = std::make_unique<EncodedMean>(site, settings.code.compressor, ranks(), residuals);
    halves_.resize(deltas_.size());
  }

  void backward_done() override {
    Averages::backward_done();
    for (int b = 0; encodes_ && settings_.delay > 0 && b < buckets(); ++b) {
      if (starts(b, info_.step - (settings_.delay + 1) / 2)) gather();
    }
  }

 protected:
  bool meets(int b, std::int64_t t) const override { return settings_.meets(b, buckets(), t); }
  void first_step() override { copy_parameters_to(0); }
  void start(int b) override {
    const auto i = static_cast<std::size_t>(b);
    const Bucket& of = bucket(b);
    if (encodes_) {
      encoded_->start(b, of.sync[0].numbers, of.parameters, deltas_[i], info_.step);
      halves_[i] = 1;
      return;
    }
    const StreamScope scope(site_.backend, StreamKind::kUpdate);
    site_.backend.weighted_sum({.in = {of.sync[0].numbers, of.parameters},
                                .weight = {1.0, -1.0},
                                .terms = 2,
                                .out = deltas_[i]});
    if (site_.transport.size() > 1) {
      tickets_[i] = site_.transport.start_sum(deltas_[i], deltas_[i], {info_.step, b, info_.step});
    }
  }
  /// Afterwards deltas_[b] has the sum, or an encoded mean.
  void settle(int b) override {
    const auto i = static_cast<std::size_t>(b);
    if (!encodes_) return Algorithm::settle(tickets_[i], b);
    if (halves_[i] == 0) return;
    gather();
    encoded_->finish(b, waiting_);
    halves_[i] = 0;
  }
  void meet(int b) override {
    Bucket& of = bucket(b);
    apply(b, *rule_, {state(b, 1), state(b, 0)}, deltas_[static_cast<std::size_t>(b)],
          of.parameters);
  }

 private:
  /// Starts the second halves of what is under way, which is all of one fragment.
  void gather() {
    for (int b = 0; b < buckets(); ++b) {
      if (halves_[static_cast<std::size_t>(b)] != 1) continue;
      encoded_->gather(b, info_.step, waiting_);
      halves_[static_cast<std::size_t>(b)] = 2;
    }
  }

  DiLoCoSettings settings_;
  bool encodes_;
  std::unique_ptr<OptimizerRule> rule_;
  std::vector<Tensor> deltas_;  ///< by bucket: Δ, then the sum of all ranks', or an encoded mean
  std::vector<Ticket> tickets_;
  std::unique_ptr<CodedMean> encoded_;
  std::vector<char>
      halves_;  ///< by bucket: how many halves of encoded_ were started and not finished
  CodedMean::Wait waiting_ = [this](Ticket ticket, int bucket) { wait(ticket, bucket); };
};

/// The keys about what `sync.exchange` encodes.
struct ExchangeKeys {
  ConfigSection config;
  std::int64_t block;
  bool feedback;
  double decay;
  SparseSettings sparse;

  explicit ExchangeKeys(ConfigSection& keys)
      : config(keys),
        block(read_block(keys)),
        feedback(keys.boolean("error_feedback", false,
                              "what encoding (sync.exchange) leaves out of a difference, and of a "
                              "mean, goes into the next; with sparse: true")),
        decay(keys.number("error_decay", 0.95, Range{0.0, 1.0, true, false},
                          "error_feedback: part of it that is kept")) {
    keys.read("share", sparse.share, Range{0.0, 1.0, true, false},
              "exchange sparse: part of each block's numbers that is sent");
    keys.read("value_bits", sparse.value_bits, Range::closed(2, 8),
              "exchange sparse: bits of a number that is sent: 2, 4 or 8");
    if (sparse.value_bits != 2 && sparse.value_bits != 4 && sparse.value_bits != 8)
      keys.error("value_bits", "is {}; allowed: 2, 4, 8", sparse.value_bits);
    keys.read("aggregate", sparse.of_all, {{"senders", false}, {"ranks", true}},
              "exchange sparse: a number's mean is over the ranks that sent it, or over all; where "
              "data.partition is dirichlet the default is ranks");
  }
  /// Refuses keys that do not go with this exchange, but with those that are `needed`.
  void refuse(std::initializer_list<const char*> keys, const char* exchange,
              const char* needed) const {
    for (const char* key : keys) {
      if (config.changed(key))
        config.error(key, "does not go with sync.exchange {}; leave it out, or set that to {}",
                     exchange, needed);
    }
  }
  /// The settings with this exchange. A sparse one has other defaults.
  DiLoCoSettings with(DiLoCoSettings settings, const MixerKind& exchange) {
    if (!exchange.encodes)
      refuse({"block", "error_feedback", "error_decay"}, "fp32", "bf16, int8, int4 or sparse");
    if (!exchange.sparse)
      refuse({"share", "value_bits", "aggregate"}, exchange.encodes ? "of codes alone" : "fp32",
             "sparse");
    if (!exchange.encodes) return settings;
    bool feeds_back = feedback;
    if (exchange.sparse) {
      const auto instead = [&](const char* key, auto& value, auto standard) {
        if (config.has(key)) return;
        value = standard;
        config.resolve(key, standard);
      };
      instead("outer_lr", settings.lr, 1.0);
      instead("outer_momentum", settings.momentum, 0.0);
      instead("error_feedback", feeds_back, true);
      if (exchange.unequal_data && !config.has("aggregate")) {
        sparse.of_all = true;
        config.resolve("aggregate", "ranks");
      }
      sparse.block = block;
      instead("block", sparse.block, std::int64_t{4096});
      if (sparse.block < 32 || sparse.block > 65536)
        config.error("block", "is {}; allowed with sync.exchange sparse: multiples of 32 to 65536",
                     sparse.block);
      settings.code.sparse = sparse;
    } else {
      settings.code.compressor = {exchange.code, block};
    }
    if (config.changed("error_decay") && !feeds_back)
      config.error("error_decay",
                   "is about error_feedback, which is false; set that, or leave it out");
    settings.code.error_decay = feeds_back ? decay : 0.0;
    return settings;
  }
};

DiLoCoQuorum read_quorum(ConfigSection& config, const DiLoCoSettings& settings) {
  DiLoCoQuorum quorum;
  config.read("quorum", quorum.ranks, Range::closed(0, 1e6),
              "ranks whose differences an outer step needs; others are waited for as long as they "
              "usually take after that; 0: all are needed; with elastic.join, all where there are "
              "fewer ranks than that");
  const std::int64_t grace_ms =
      config.integer("grace_ms", 1000, Range::closed(0, 1e7),
                     "most milliseconds that an outer step waits for others after the quorum");
  quorum.grace_seconds = 1e-3 * static_cast<double>(grace_ms);
  config.read(
      "late", quorum.carry, {{"drop", false}, {"carry", true}},
      "a rank's difference that came too late for an outer step: lost, or part of its next one");
  if (quorum.ranks == 0 && (config.changed("grace_ms") || quorum.carry)) {
    config.error(quorum.carry ? "late" : "grace_ms",
                 "is for outer steps with a quorum, and quorum is 0; give a quorum too");
  }
  if (quorum.ranks > 0 && settings.delay > 0) {
    config.error("delay", "is {}, but outer steps with a quorum come when they can; allowed: 0",
                 settings.delay);
  }
  if (quorum.ranks > 0 && settings.states == StatesAt::kAverage) {
    config.error("states",
                 "is average, but not all ranks take part in an outer step with a quorum; allowed: "
                 "local, reset");
  }
  return quorum;
}

}  // namespace

AlgorithmPlan plan_diloco(ConfigSection& config) {
  DiLoCoSettings settings;
  static_cast<OuterSettings&>(settings) = read_outer_steps(config, 500);
  config.read("delay", settings.delay, Range::closed(0, 1e6),
              "steps that a mean has to arrive; below period / fragments");
  config.read("blend", settings.blend, Range::closed(0.0, 1.0),
              "part of the rank's own parameters that stays in an outer step");
  settings.states = read_states(config);
  const ExchangeKeys keys(config);
  if (settings.blend == 1.0) {
    config.error("blend",
                 "is 1, so that ranks keep what they disagree in, 1.000 times as large after "
                 "every outer step; allowed: < 1");
  }
  if (settings.delay >= settings.period / settings.fragments) {
    config.error("delay", "is {}, but outer steps are {} steps apart; allowed: < {}",
                 settings.delay, settings.period / settings.fragments,
                 settings.period / settings.fragments);
  }
  check_outer_states(config, settings);
  const DiLoCoQuorum quorum = read_quorum(config, settings);
  std::vector<KeptState> states{{"anchor"}, {"outer_momentum"}};
  if (settings.delay > 0) states.push_back({"delta"});
  if (quorum.carry) {
    states.push_back({"carried"});
    states.push_back(
        {.name = "carried_weights", .dtype = DType::kFloat64, .numbers = settings.fragments});
  }
  AlgorithmEquality equality{.rule_states = settings.states != StatesAt::kLocal, .equal_states = 2};
  // With a blend each rank keeps a share of its own parameters, so that they are equal nowhere.
  if (settings.blend == 0.0)
    equality.after = [settings](std::int64_t steps, int b, int buckets) {
      return settings.meets(b, buckets, steps - 1);
    };
  const bool waits_for_some = quorum.ranks > 0;
  return {.title = "DiLoCo",
          .needs = {.fp16_fault = fp16_fault(settings.states),
                    .least_buckets = {"fragments", settings.fragments},
                    .least_ranks = {"quorum", quorum.ranks},
                    .host_messages = waits_for_some},
          .states = states,
          .scratch = settings.delay > 0 ? 0
                     : waits_for_some   ? 2
                                        : 1,
          .messages = {.encoding = Encoding{.of_means = true}, .gathers = waits_for_some},
          .steps = {.keys = {{"period", settings.period}},
                    .asynchronous = waits_for_some,
                    .timing = "with a quorum takes what has come by then",
                    .undo = "\"quorum\": 0",
                    .leaves_out = waits_for_some,
                    .restarts_updates = settings.states == StatesAt::kReset,
                    .joins_every = settings.period,
                    .joins_within = settings.period / settings.fragments - settings.delay},
          .equality = equality,
          .cost = {.exchanges = {{.what = waits_for_some ? PlannedExchange::kGatheredModels
                                                         : PlannedExchange::kModels,
                                  .every = settings.period,
                                  .hidden = settings.delay}},
                   .disagreement = drift_of_averages(settings.period, settings.blend > 0.0),
                   .tried = {{{"period", 16}},
                             {{"period", 48}},
                             {{"period", 48}, {"share", 1.0 / 64.0}}}},
          .make = waits_for_some ? maker_of_quorum_diloco(settings, settings.blend, quorum, {})
                                 : maker_of<DiLoCo>(settings),
          .by_exchange = [=](AlgorithmPlan& plan, const MixerKind& exchange) {
            const DiLoCoSettings of = ExchangeKeys(keys).with(settings, exchange);
            const DifferenceCode& code = of.code;
            set_learning(plan.cost, measured_learning(OuterMix::kAll, exchange,
                                                      code.sparse ? code.sparse->share : 1.0));
            if (!code.encodes()) return;
            if (code.error_decay > 0.0 && waits_for_some) {
              plan.states.insert(plan.states.begin() + 2, {"residual"});
              ++plan.scratch;
            } else if (code.error_decay > 0.0) {
              plan.states.push_back({"residual"});
              if (!code.sparse)
                plan.states.push_back({.name = "residual_mean", .dtype = DType::kFloat32});
            }
            plan.messages.wire = code.sparse ? code.sparse->wire() : code.compressor.wire();
            if (code.sparse) plan.cost.exchanges[0].what = PlannedExchange::kGatheredModels;
            plan.make = waits_for_some ? maker_of_quorum_diloco(of, of.blend, quorum, code)
                                       : maker_of<DiLoCo>(of);
          }};
}

}  // namespace starling
