#include "comm/algorithms/builtin.h"
#include "comm/algorithms/compression.h"
#include "comm/algorithms/disagreement.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

/// Choco-SGD (Koloskova et al. 2019, arXiv 1907.09356): what travels is how far a rank has gone
/// from x̂, what all neighbours believe it to be, so that errors of encoding fade as ranks settle.
/// Step t uses the exchange of step t - 1:
///     x̂ += q      r += Σ_j W_ij q_j      x' = U(x + γ(r - x̂), g)      q = C(x' - x̂)
///     x̂(0) = r(0) = x(0)
class Choco final : public EncodedBucketwise {
 public:
  Choco(const AlgorithmSite& site, const Compressor& compressor, double step)
      : EncodedBucketwise(site, compressor), step_(step), started_(site.buckets.size()) {}

  void finish() override {
    for (int b = 0; b < buckets(); ++b) settle(b);
    updater_.join();
  }
  void resume(std::int64_t step) override {
    finish();
    for (int b = 0; b < buckets(); ++b) {
      started_[static_cast<std::size_t>(b)] = false;
      if (step > 0) start(b, step - 1);
    }
  }

 protected:
  void start_step() override {
    if (info_.step != 0) return;
    copy_parameters_to(kBelieved);
    copy_parameters_to(kAround);
  }
  void update(int b) override {
    Mix mix;
    if (started_[static_cast<std::size_t>(b)]) {
      settle(b);
      messages_.add_up(b, 1.0, {}, state(b, kBelieved), true);
      messages_.add_up(b, exchange_.self_weight, exchange_.weights, state(b, kAround), true);
    }
    if (ranks() > 1)
      mix = {.self_weight = 1.0,
             .received = {state(b, kAround), state(b, kBelieved)},
             .weights = {step_, -step_}};
    updater_.update(b, info_, mix);
    start(b, info_.step);
  }

 private:
  static constexpr std::size_t kBelieved = 0, kAround = 1;  ///< x̂ and r

  void start(int b, std::int64_t step) {
    if (ranks() == 1) return;
    on_update_stream(site_.backend, [&] {
      site_.backend.weighted_sum({.in = {bucket(b).parameters, state(b, kBelieved)},
                                  .weight = {1.0, -1.0},
                                  .terms = 2,
                                  .out = moved(b)});
    });
    send(b, step);
    started_[static_cast<std::size_t>(b)] = true;
  }

  double step_;
  std::vector<char> started_;  ///< by bucket: an exchange, which the next update uses
};

/// z is {x, x̂, r}.
EncodedModel model_of_beliefs(const Compressor& compressor, double step) {
  return {.states = 2,
          .states_begin_at_x = true,
          .code = compressor.code,
          .block = compressor.block,
          .step = [step](auto& z, const auto& mix, const auto& code) {
            std::vector<double> q = z[0];
            add(q, -1.0, z[1]);
            code(q);
            add(z[1], 1.0, q);
            mix(q);
            add(z[2], 1.0, q);
            add(z[0], step, z[2]);
            add(z[0], -step, z[1]);
          }};
}

}  // namespace

AlgorithmPlan plan_choco(ConfigSection& config) {
  const Compressor compressor = read_compressor(config, Code::kInt8);
  const double step = read_consensus_step(config);
  return {
      .title = "Choco",
      .topology = TopologyKind::kSymmetricFixed,
      .states = {{"x_hat"}, {"r"}},
      .messages = {.wire = compressor.wire()},
      // Encoding apart it is gossip that goes a part of the way.
      .growth = {[step](const OptimizerRule& rule) {
                   return model_of_mixing(rule, {.part = step});
                 },
                 model_of_beliefs(compressor, step)},
      .cost = {.exchanges = {{.hidden = 1}},
               .disagreement =
                   [step](double left) { return drift_of(1, true, 1.0 + (left - 1.0) / step); }},
      .make = maker_of<Choco>(compressor, step)};
}

}  // namespace starling
