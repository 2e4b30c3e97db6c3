#include "comm/algorithms/disagreement.h"

#include <cmath>

#include "comm/algorithms/momentum.h"

namespace starling {

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

}  // namespace starling
