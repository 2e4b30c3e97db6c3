#include <numeric>

#include "comm/algorithms/builtin.h"
#include "comm/algorithms/compression.h"
#include "comm/algorithms/disagreement.h"
#include "kernels/decode_sum.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

/// Bagua's low-precision decentralized training (Gan et al. 2021, arXiv 2107.01499; Tang et al.
/// 2018, DCD-PSGD, arXiv 1803.06443): every rank keeps a replica X_j of each neighbour, which
/// follows by the encoded differences that the neighbour follows too.
///     h = U(x, g)      q = C(h - X + Σ_j W_ij (X_j - X))      x' = X' = X + q      X_j += q_j
///     X(0) = X_j(0) = x(0)
class LowPrecision final : public EncodedBucketwise {
 public:
  LowPrecision(const AlgorithmSite& site, const Compressor& compressor, std::int64_t interval)
      : EncodedBucketwise(site, compressor), interval_(interval) {
    take_ = make_linear_rule(0, 0, [](double) { return LinearTerms{.x = {.p = 0, .g = 1}}; });
  }

 protected:
  void start_step() override {
    if (info_.step != 0 || ranks() == 1) return;
    for (std::size_t k = 0; k <= exchange_.receive_from.size(); ++k) copy_parameters_to(k);
  }
  void update(int b) override {
    updater_.update(b, info_);
    if (!exchanges()) return;
    const Tensor& h = bucket(b).parameters;
    const double around = std::accumulate(exchange_.weights.begin(), exchange_.weights.end(), 0.0);
    std::vector<Tensor> terms{h, state(b, 0)};
    std::vector<double> weights{1.0, -1.0 - around};
    for (std::size_t k = 0; k < exchange_.weights.size(); ++k) {
      terms.push_back(state(b, k + 1));
      weights.push_back(exchange_.weights[k]);
    }
    on_update_stream(site_.backend, [&] { weighted_sum(site_.backend, terms, weights, moved(b)); });
    send(b, info_.step);
  }
  void complete() override {
    for (int b = 0; exchanges() && b < buckets(); ++b) {
      settle(b);
      messages_.add_up(b, 1.0, {}, state(b, 0), true);
      for (std::size_t k = 0; k < exchange_.weights.size(); ++k)
        messages_.add_received(b, k, state(b, k + 1));
      updater_.update(b, info_, {}, {.rule = take_.get(), .gradient = state(b, 0), .always = true});
    }
  }

 private:
  bool exchanges() const { return ranks() > 1 && (info_.step + 1) % interval_ == 0; }

  std::int64_t interval_;
  std::unique_ptr<OptimizerRule> take_;  ///< p' = g
};

/// z is {x, X}.
EncodedModel model_of_replicas(const Compressor& compressor) {
  return {.states = 1,
          .states_begin_at_x = true,
          .code = compressor.code,
          .block = compressor.block,
          .step = [](auto& z, const auto& mix, const auto& code) {
            std::vector<double> q = z[1];
            mix(q);
            add(q, -2.0, z[1]);
            add(q, 1.0, z[0]);
            code(q);
            add(z[1], 1.0, q);
            z[0] = z[1];
          }};
}

}  // namespace

AlgorithmPlan plan_low_precision(ConfigSection& config) {
  const Compressor compressor = read_compressor(config);
  const std::int64_t interval =
      config.integer("interval", 1, Range::closed(1, 1e6), "steps from one exchange to the next");
  return {.title = "low-precision ring",
          .topology = TopologyKind::kSymmetricFixed,
          .needs = {.default_topology = "static-ring"},
          .states = {{.name = "replica", .per_neighbour = true}},
          .messages = {.wire = compressor.wire()},
          .steps = {.keys = {{"interval", interval}}, .period = interval == 1 ? 1 : 0},
          .growth = {[interval](const OptimizerRule& rule) {
                       return model_of_mixing(rule, {.interval = interval});
                     },
                     model_of_replicas(compressor)},
          .cost = cost_of_mixing(false, interval),
          .make = maker_of<LowPrecision>(compressor, interval)};
}

}  // namespace starling
