#include "comm/algorithms/gossip.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "comm/algorithms/builtin.h"
#include "comm/algorithms/compression.h"
#include "comm/algorithms/disagreement.h"
#include "comm/replica.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"
#include "kernels/decode_sum.h"
#include "topology/round_table.h"

namespace starling {
namespace {

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
  Tensor own_, sums_, saved_, difference_;  ///< fp64 [2] of this rank and of all; x - c of a bucket
  Ticket ticket_ = 0;
};

ConsensusControl::ConsensusControl(const AlgorithmSite& site, double above,
                                   std::int64_t check_every, std::int64_t interval, Tensor saved)
    : backend_(site.backend),
      transport_(site.transport),
      replica_(site.replica),
      topology_(std::make_unique<WithGlobalRounds>(*site.topology, 2)),
      above_(above),
      check_every_(check_every),
      interval_(interval),
      own_(site.backend, Shape{2}, DType::kFloat64),
      sums_(site.backend, Shape{2}, DType::kFloat64),
      saved_(std::move(saved)) {
  backend_.fill(own_, 0.0);
  backend_.fill(sums_, 0.0);
}

std::int64_t ConsensusControl::next_round(bool global) {
  global |= std::exchange(global_next_, false);
  return global ? 1 : 2 * rounds_++;
}

void ConsensusControl::start_measuring() {
  // A step checks what it mixed, or what was mixed last before it.
  measuring_ =
      (step_ + interval_ - 1) / check_every_ > (step_ - 1 + check_every_) / check_every_ - 1;
  if (measuring_) on_update_stream(backend_, [&] { backend_.fill(own_, 0.0); });
}

void ConsensusControl::measure(const Tensor& x, const Mix& mix) {
  if (!measuring_) return;
  const StreamScope scope(backend_, StreamKind::kUpdate);
  if (!mix.received.empty()) {
    if (!difference_ || difference_.elements() < x.elements())
      difference_ = Tensor(backend_, x.shape(), x.dtype());
    const Tensor difference = difference_.slice(0, Shape{x.elements()});
    std::vector<Tensor> terms{x};
    std::vector<double> weights{1.0 - mix.self_weight};
    for (std::size_t k = 0; !mix.encoded && k < mix.received.size(); ++k) {
      terms.push_back(mix.received[k]);
      weights.push_back(-mix.weights[mix.sum ? 0 : k]);
    }
    weighted_sum(backend_, terms, weights, difference);
    if (mix.encoded)
      decode_sum(backend_, mix.received, mix.encoded, -mix.weights[0], difference, true);
    backend_.reduce(Reduce::squared_distance(difference, {}, own_, 0));
  }
  backend_.reduce(Reduce::squared_distance(x, {}, own_, 1));
}

void ConsensusControl::start_sums() {
  measuring_ = false;
  if (!checks(step_)) return;
  const StreamScope scope(backend_, StreamKind::kUpdate);
  backend_.copy(own_, sums_);  // own_ may be overwritten while the sum is in flight
  ticket_ = transport_.start_sum(sums_, sums_, {step_, 0, step_});
  summing_ = true;
}

void ConsensusControl::judge() {
  std::array<double, 2> sums{};
  on_update_stream(backend_, [&] { backend_.copy_to_host(sums_, sums.data()); });
  if (replica_) replica_->sum(sums.data(), sums.size(), {.step = step_});
  if (sums[1] > 0.0 && std::sqrt(sums[0] / sums[1]) > above_) global_next_ = true;
  summing_ = false;
}

void ConsensusControl::save() {
  std::array<double, kSaved> values{};
  on_update_stream(backend_, [&] {
    backend_.copy_to_host(own_, values.data());
    backend_.copy_to_host(sums_, values.data() + 2);
  });
  values[4] = summing_ ? 1.0 : 0.0;
  values[5] = global_next_ ? 1.0 : 0.0;
  values[6] = static_cast<double>(rounds_);
  values[7] = static_cast<double>(in_flight);
  backend_.copy_from_host(values.data(), saved_);
}

void ConsensusControl::restore() {
  std::array<double, kSaved> values{};
  on_update_stream(backend_, [&] {
    backend_.copy_to_host(saved_, values.data());
    backend_.copy_from_host(values.data(), own_);
    backend_.copy_from_host(values.data() + 2, sums_);
  });
  summing_ = values[4] != 0.0;
  global_next_ = values[5] != 0.0;
  rounds_ = static_cast<std::int64_t>(values[6]);
  in_flight = static_cast<std::int64_t>(values[7]);
}

/// Mixes with the neighbours and updates. With order awc step t mixes what round t - 1 brought
/// (x(t) of the neighbours), updates, and starts round t; per bucket. So an exchange has a whole
/// forward and backward pass to arrive. With start_at_begin step t starts round t - 1 of all
/// buckets at its beginning: the same numbers, and nothing is in flight between steps. With order
/// atc step t updates, starts round t, and mixes what it brings at its end.
class Gossip final : public Bucketwise {
 public:
  Gossip(const AlgorithmSite& site, const GossipSettings& settings,
         std::function<bool(std::int64_t)> skips_exchange, Tensor control)
      : Bucketwise(site),
        settings_(settings),
        when_{settings.interval},
        skips_exchange_(std::move(skips_exchange)) {
    if (settings.global_above > 0.0 && ranks() > 1) {
      // Where steps skip their exchange it is not known which mix is the last one before a check:
      // then every mix is measured.
      const std::int64_t apart =
          skips_exchange_ ? settings.check_every + settings.interval : settings.interval;
      control_.emplace(site, settings.global_above, settings.check_every, apart,
                       std::move(control));
      site_.topology = &control_->topology();
    } else if (settings.global_every > 0 && ranks() > 1) {
      with_global_rounds_ =
          std::make_unique<WithGlobalRounds>(*site.topology, settings.global_every);
      site_.topology = with_global_rounds_.get();
    }
    site_.mixer.open({site_.buckets, site_.topology, site_.overlap,
                      site_.start_at_begin && !settings.adapt_then_combine,
                      settings.adapt_then_combine});
    if (settings.mix_states > 0 && ranks() > 1) {
      for (std::size_t k = 0; !site_.buckets.empty() && k < site_.buckets[0].states.size(); ++k) {
        states_.push_back(
            &make_mixer_for([k](const Bucket& of) { return of.states[k]; }, site_.overlap));
      }
    }
  }

  bool parameters_final(int) const override {
    return updates_at_once() && (!settings_.adapt_then_combine || started_ < 0);
  }

  void finish() override {
    site_.mixer.settle();
    for (Mixer* states : states_) states->settle();
    if (control_) {
      control_->settle(wait_for_sums());
      control_->save();
    }
    updater_.join();  // the update stream has waited, and parameters are read on the compute stream
  }

  void resume(std::int64_t step) override {
    site_.mixer.settle();
    if (control_) control_->restore();
    used_ = control_ ? control_->in_flight : used_in(step);
    updater_.join();
    site_.mixer.resume(step, used_);
    for (Mixer* states : states_) states->resume(step, mixes_states(used_in(step)) ? used_ : -1);
  }
  void resume_after_loss(std::int64_t step) override {
    // Control states that were saved last may be of different steps: reset them on all ranks.
    if (control_) control_->save();
    resume(step);
  }

 protected:
  void start_step() override {
    const std::int64_t step = info_.step, exchange = when_.started_after(step);
    used_ = used_in(step);
    started_ = started_after(step);
    if (control_) {
      used_ = settings_.adapt_then_combine ? -1 : control_->in_flight;
      control_->begin(step, wait_for_sums());
      const bool global =
          settings_.global_every > 0 && (exchange + 1) % settings_.global_every == 0;
      const std::int64_t round = exchange >= 0 ? control_->next_round(global) : -1;
      started_ = skips_exchange(step) ? -1 : round;
      control_->in_flight = settings_.adapt_then_combine ? -1 : started_;
      if (settings_.adapt_then_combine ? started_ >= 0 : used_ >= 0) control_->start_measuring();
    }
    if (!settings_.adapt_then_combine) site_.mixer.begin(step, used_);
  }

  void update(int b) override {
    const std::int64_t step = info_.step;
    if (settings_.adapt_then_combine) {
      updater_.update(b, info_);
    } else {
      mix_states(b, used_in(step), used_);
      const Mix& mix = site_.mixer.receive(b, step, used_);
      if (control_ && used_ >= 0) control_->measure(bucket(b).parameters, mix);
      updater_.update(b, info_, weighted(mix));
    }
    if (settings_.adapt_then_combine && started_ < 0) return;
    site_.mixer.publish(b, step, started_);
    if (!mixes_states(started_after(step))) return;
    for (Mixer* states : states_) states->publish(b, step, started_);
  }

  void complete() override {
    for (int b = 0; settings_.adapt_then_combine && started_ >= 0 && b < buckets(); ++b) {
      const Mix& mix = site_.mixer.receive(b, info_.step, started_);
      if (control_) control_->measure(bucket(b).parameters, mix);
      updater_.mix(b, info_, weighted(mix));
      site_.mixer.publish(b, info_.step, -1);
      mix_states(b, started_after(info_.step), started_);
    }
    if (control_) control_->start_sums();
  }

 private:
  bool skips_exchange(std::int64_t step) const {
    return skips_exchange_ && step >= 0 && skips_exchange_(step);
  }
  // Exchanges, counted; without consensus control their numbers are the topology's rounds.
  std::int64_t used_in(std::int64_t t) const {
    return settings_.adapt_then_combine || skips_exchange(t - 1) ? -1 : when_.used_in(t);
  }
  std::int64_t started_after(std::int64_t t) const {
    return skips_exchange(t) ? -1 : when_.started_after(t);
  }
  bool mixes_states(std::int64_t exchange) const {
    return !states_.empty() && exchange >= 0 && (exchange + 1) % settings_.mix_states == 0;
  }

  /// (1-α)·x + α·mix.
  const Mix& weighted(const Mix& mix) {
    double share = settings_.mixing;
    if (settings_.power > 0.0) {
      const double largest = std::max(info_.lr, info_.largest_lr);
      share = std::max(settings_.least,
                       largest > 0.0 ? std::pow(info_.lr / largest, settings_.power) : 1.0);
    }
    if (share == 1.0 || mix.received.empty()) return mix;
    scaled_mix_ = mix;
    scaled_mix_.self_weight = (1.0 - share) + share * mix.self_weight;
    for (double& weight : scaled_mix_.weights) weight *= share;
    return scaled_mix_;
  }

  /// Mixes the states with exchange `exchange`, whose round is `round`.
  void mix_states(int b, std::int64_t exchange, std::int64_t round) {
    if (!mixes_states(exchange)) return;
    for (std::size_t k = 0; k < states_.size(); ++k) {
      updater_.mix(b, info_, states_[k]->receive(b, info_.step, round), bucket(b).states[k]);
      states_[k]->publish(b, info_.step, -1);
    }
  }
  std::function<void(Ticket)> wait_for_sums() {
    return [this](Ticket ticket) { wait(ticket, 0); };
  }

  GossipSettings settings_;
  ExchangeSteps when_;
  std::function<bool(std::int64_t)> skips_exchange_;
  std::unique_ptr<WithGlobalRounds> with_global_rounds_;
  std::optional<ConsensusControl> control_;
  std::int64_t used_ = -1, started_ = -1;  ///< the rounds of this step's exchanges
  /// One a state of the optimizer; empty where they are not mixed
  std::vector<Mixer*> states_;
  Mix scaled_mix_;
};

}  // namespace

GossipSettings read_gossip(ConfigSection& config) {
  GossipSettings settings;
  config.read("order", settings.adapt_then_combine, {{"awc", false}, {"atc", true}},
              "awc: combine while computing, the exchange overlaps the next step; atc: update "
              "first, then mix, and wait for it");
  config.read("interval", settings.interval, Range::closed(1, 1e6),
              "steps from one exchange to the next");
  config.read("global_every", settings.global_every, Range::closed(0, 1e6),
              "every so many exchanges one is the mean over all ranks; 0: none");
  config.read("mix_states", settings.mix_states, Range::closed(0, 1e6),
              "every so many exchanges the optimizer's states are mixed too; 0: never");
  config.read("global_above", settings.global_above, Range::at_least(0.0),
              "where ranks are further apart than this part of their own size, an exchange is the "
              "mean over all; 0: off");
  config.read("check_every", settings.check_every, Range::closed(1, 1e6),
              "steps from one look at that to the next");
  if (config.changed("check_every") && settings.global_above == 0.0) {
    config.error(
        "check_every",
        "is how often global_above is looked at, which is 0; give global_above, or leave it out");
  }
  const nlohmann::json mixing =
      config.has("mixing") ? config.raw("mixing", "number or object", "") : nlohmann::json();
  if (!mixing.is_object()) {
    config.read("mixing", settings.mixing, Range{0.0, 1.0, true, false},
                "part of the mix in what is updated, the rest is the rank's own; or {\"power\": p, "
                "\"min\": a}: (rate / largest rate so far)^p, at least a");
  } else {
    ConfigSection adaptive = config.section("mixing", "");
    settings.power = adaptive.number("power", 1.0, Range::positive(),
                                     "of the learning rate's part of the largest so far");
    adaptive.read("min", settings.least, Range::closed(0.0, 1.0), "the least part of the mix");
    adaptive.finish();
  }
  if (settings.global_above > 0.0 && (settings.mixing != 1.0 || settings.power > 0.0)) {
    config.error("mixing",
                 "does not go with global_above, which brings together what a partial mix keeps "
                 "apart; leave one of them out");
  }
  return settings;
}

std::vector<StepKey> step_keys_of(const GossipSettings& settings) {
  std::vector<StepKey> keys;
  const auto of_exchanges = [&](const char* key, std::int64_t every) {
    keys.push_back({.key = key,
                    .steps = every * settings.interval,
                    .unit = settings.interval,
                    .used_next = !settings.adapt_then_combine});
  };
  keys.push_back(
      {.key = "interval", .steps = settings.interval, .used_next = !settings.adapt_then_combine});
  if (settings.global_every > 0) of_exchanges("global_every", settings.global_every);
  if (settings.global_above > 0.0) keys.push_back({"check_every", settings.check_every});
  if (settings.mix_states > 0) of_exchanges("mix_states", settings.mix_states);
  return keys;
}

std::vector<KeptState> states_of(const GossipSettings& settings) {
  if (settings.global_above == 0.0) return {};
  return {
      {.name = "consensus_control", .dtype = DType::kFloat64, .numbers = ConsensusControl::kSaved}};
}

DisagreementModel model_of_mixing(const OptimizerRule& rule, const PartialMix& how) {
  const double beta = momentum_of(rule),
               rest = std::pow(beta, static_cast<double>(how.interval - 1));
  // The steps without an exchange take (β + β² + …)·m from x. Example: with β = 0.9 and interval 3
  // that is 1.71 m.
  const double alone = beta < 1.0 ? beta * (1.0 - rest) / (1.0 - beta) : 0.0;
  return {.states = 1,
          .step =
              [=](auto& z, const auto& mix) {
                add(z[0], -alone, z[1]);
                scale(z[1], rest * beta);
                if (how.adapt_then_combine) add(z[0], -1.0, z[1]);
                std::vector<double> mixed = z[0];
                mix(mixed);
                scale(z[0], 1.0 - how.part);
                add(z[0], how.part, mixed);
                if (!how.adapt_then_combine) add(z[0], -1.0, z[1]);
              },
          .steps = how.interval,
          .mean_every = how.mean_every};
}

AlgorithmGrowth growth_of(const GossipSettings& settings) {
  return {[settings](const OptimizerRule& rule) {
    // An adaptive part is as large as at the start, and no mean is called for by global_above.
    return model_of_mixing(rule, {settings.mixing, settings.interval, settings.global_every,
                                  settings.adapt_then_combine});
  }};
}

std::unique_ptr<Algorithm> make_gossip(const AlgorithmSite& site, const GossipSettings& settings,
                                       std::function<bool(std::int64_t)> skips_exchange,
                                       Tensor control) {
  return std::make_unique<Gossip>(site, settings, std::move(skips_exchange), std::move(control));
}

AlgorithmPlan plan_gossip(ConfigSection& config) {
  const GossipSettings settings = read_gossip(config);
  std::vector<KeptState> states;
  const Encoding encoding = read_encoding(config, states);
  // States of the first bucket alone come after the others.
  for (const KeptState& state : states_of(settings)) states.push_back(state);
  AlgorithmCost cost = cost_of_mixing(!settings.adapt_then_combine, settings.interval);
  cost.near_all_reduce = true;
  cost.tried = {{{"interval", 2}}, {{"interval", 4}}, {{"interval", 8}}};
  const bool repeats = settings.interval == 1 && settings.power == 0.0 &&
                       settings.mix_states == 0 && settings.global_above == 0.0;
  return {.topology = TopologyKind::kDoublyStochastic,
          .states = states,
          .messages = {.encoding = encoding,
                       .always = settings.adapt_then_combine,
                       .mixes_states = settings.mix_states > 0},
          .steps = {.keys = step_keys_of(settings),
                    .period = repeats ? std::max<std::int64_t>(settings.global_every, 1) : 0,
                    .joins_every = 1},
          .growth = growth_of(settings),
          .cost = cost,
          .make = [settings](const AlgorithmSite& site) {
            const bool kept = !site.buckets.empty() && settings.global_above > 0.0;
            return make_gossip(site, settings, {},
                               kept ? site.buckets[0].sync.back().numbers : Tensor());
          }};
}

}  // namespace starling
