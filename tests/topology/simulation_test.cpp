// Gossip on quadratics against what is known of it.
#include <doctest/doctest.h>

#include "tests/topology/support.h"
#include "topology/check.h"
#include "topology/simulation.h"

using namespace starling;

TEST_CASE(
    "topology/simulation: the mean follows the centralised trajectory exactly for every topology") {
  register_builtin_topologies();
  for (const std::string& type : topologies().names()) {
    if (type == "custom") continue;
    for (const int n : {1, 2, 6, 8, 64}) {
      const auto topology = try_make(type, n, 2);
      if (!topology) continue;
      CAPTURE(type);
      CAPTURE(n);
      SimulationOptions options{.lr = 0.2, .dimension = 3, .heterogeneity = 2.0, .seed = 5};
      Simulation simulation(*topology, options);
      std::vector<double> centre(3, 0.0);  // gradient descent on the mean objective, from 0
      for (int k = 0;; ++k) {
        for (std::size_t d = 0; d < 3; ++d)
          centre[d] -= 0.2 * simulation.curvature()[d] * (centre[d] - simulation.optimum()[d]);
        for (std::size_t d = 0; d < 3; ++d)
          CHECK(simulation.mean()[d] == doctest::Approx(centre[d]).epsilon(1e-12));
        if (k == 40) break;
        simulation.advance();
      }
      // optima differ: a bias remains
      if (n > 1 && type != "complete") CHECK(simulation.consensus_error() > 1e-6);
      CHECK(simulation.distance() < 4.0);
    }
  }
}

TEST_CASE("topology/simulation: each step is the definition's, by dense arithmetic") {
  const auto topology = make("base-2", 5);
  const SimulationOptions options{.lr = 0.3, .dimension = 2, .heterogeneity = 1.0, .seed = 1};
  // With lr 0 the values are the targets b_i; the same seed gives the same.
  const std::vector<double> b =
      Simulation(*topology, {.lr = 0.0, .dimension = 2, .heterogeneity = 1.0, .seed = 1}).values();
  Simulation simulation(*topology, options);
  std::vector<double> x(10);
  for (std::size_t e = 0; e < 10; ++e) x[e] = 0.3 * simulation.curvature()[e % 2] * b[e];
  for (int k = 0; k < 12; ++k) {
    for (std::size_t e = 0; e < 10; ++e) CHECK(simulation.values()[e] == doctest::Approx(x[e]));
    std::vector<double> next(10, 0.0);
    for (int i = 0; i < 5; ++i) {
      for (std::size_t d = 0; d < 2; ++d) {
        double& value = next[static_cast<std::size_t>(i) * 2 + d];
        for (const auto& [j, weight] : Topology::row(topology->round(k), i))
          value += weight * x[static_cast<std::size_t>(j) * 2 + d];
        const std::size_t e = static_cast<std::size_t>(i) * 2 + d;
        value -= 0.3 * simulation.curvature()[d] * (x[e] - b[e]);
      }
    }
    x = next;
    simulation.advance();
  }
}
