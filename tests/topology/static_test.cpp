// Topologies in which every rank mixes with all its neighbours, and directed ones: numbers of
// ranks, weights, rates.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numbers>

#include "tests/support/errors.h"
#include "tests/topology/support.h"
#include "topology/check.h"

using namespace starling;

namespace {

constexpr double kPi = std::numbers::pi;
using Row = std::vector<std::pair<int, double>>;

using test::contains;

double gap(const std::string& type, int n, const nlohmann::json& keys = nlohmann::json::object()) {
  return analyse(*make(type, n, 1, keys)).spectral_gap;
}

/// The largest |λ| < 1 of a circulant matrix with these (offset, weight) in a row.
double circulant_rate(int n, const std::map<int, double>& row) {
  double rate = 0.0;
  for (int k = 1; k < n; ++k) {
    double re = 0.0, im = 0.0;
    for (const auto& [offset, weight] : row) {
      re += weight * std::cos(2 * kPi * k * offset / n);
      im += weight * std::sin(2 * kPi * k * offset / n);
    }
    rate = std::max(rate, std::hypot(re, im));
  }
  return rate;
}

}  // namespace

TEST_CASE("topology/static: hypercube") {
  CHECK(make("hypercube", 8)->round(5).rows[5] == Row{{1, 0.25}, {4, 0.25}, {5, 0.25}, {7, 0.25}});
  for (int log = 1; log <= 6; ++log) {
    CAPTURE(log);
    const TopologyReport report = analyse(*make("hypercube", 1 << log));
    // eigenvalues (log + 1 - 2k)/(log + 1)
    CHECK(report.spectral_gap == doctest::Approx(log == 1 ? 1.0 : 2.0 / (log + 1)));
    CHECK(report.rounds_to_consensus.has_value() == (log == 1));
  }
  CHECK(error_of("hypercube", 12) ==
        "2 [topology] hypercube needs a power of two of ranks (1, 2, 4, 8, …), not 12; for 12 "
        "ranks: base-2, complete, directed-exp, "
        "hierarchical, random-matching, ring, shift-one, star, static-exp, static-ring, torus");
}

TEST_CASE("topology/static: torus is as square as n allows") {
  // 2 × 3: up and down are the same rank.
  CHECK(make("torus", 6)->round(0).rows[4] == Row{{1, 0.25}, {3, 0.25}, {4, 0.25}, {5, 0.25}});
  // 3 × 4.
  CHECK(make("torus", 12)->round(0).rows[0] ==
        Row{{0, 0.2}, {1, 0.2}, {3, 0.2}, {4, 0.2}, {8, 0.2}});
  // 1 × 7: a ring.
  CHECK(matrix_of(make("torus", 7)->round(0), 7) == matrix_of(make("static-ring", 7)->round(0), 7));
  for (const int side : {3, 4, 5, 8}) {
    CAPTURE(side);
    double rate = 0.0;
    for (int a = 0; a < side; ++a) {
      for (int b = 0; b < side; ++b) {
        if (a + b > 0)
          rate = std::max(rate, std::fabs(1 + 2 * std::cos(2 * kPi * a / side) +
                                          2 * std::cos(2 * kPi * b / side)) /
                                    5);
      }
    }
    CHECK(gap("torus", side * side) == doctest::Approx(1 - rate));
  }
}

TEST_CASE(
    "topology/static: static-ring, static-exp and directed-exp have the rates of circulant "
    "matrices") {
  for (const int n : {3, 4, 5, 6, 8, 13, 24, 33, 64}) {
    CAPTURE(n);
    CHECK(gap("static-ring", n) ==
          doctest::Approx(1 - circulant_rate(n, {{0, 1 / 3.0}, {1, 1 / 3.0}, {n - 1, 1 / 3.0}}))
              .epsilon(1e-8));
    std::map<int, double> row{{0, 0.0}};
    const int distances = static_cast<int>(std::ceil(std::log2(n)));
    for (int k = 0; k < distances; ++k) row[1 << k] = 1.0 / (distances + 1);
    row[0] = 1.0 / (distances + 1);
    CHECK(gap("static-exp", n) == doctest::Approx(1 - circulant_rate(n, row)).epsilon(1e-8));
  }
  // from -1, -2, -4
  CHECK(make("static-exp", 5)->round(0).rows[0] == Row{{0, 0.25}, {1, 0.25}, {3, 0.25}, {4, 0.25}});
  CHECK(analyse(*make("static-exp", 3)).rounds_to_consensus == 1);
}

TEST_CASE("topology/static: star with Metropolis weights") {
  CHECK(make("star", 4)->round(0).rows[0] == Row{{0, 0.25}, {1, 0.25}, {2, 0.25}, {3, 0.25}});
  CHECK(make("star", 4)->round(0).rows[2] == Row{{0, 0.25}, {2, 0.75}});
  for (const int n : {3, 5, 17, 64}) CHECK(gap("star", n) == doctest::Approx(1.0 / n));
}

TEST_CASE("topology/static: directed-exp receives from i - 2^k and is exact for powers of two") {
  CHECK(make("directed-exp", 6)->period() == 3);
  CHECK(make("directed-exp", 6)->round(2).rows[1] == Row{{1, 0.5}, {3, 0.5}});  // 1 - 4 mod 6
  CHECK(make("directed-exp", 6)->round(4).rows[1] == Row{{1, 0.5}, {5, 0.5}});  // k mod 3
  for (int log = 1; log <= 6; ++log) {
    CAPTURE(log);
    const auto topology = make("directed-exp", 1 << log);
    CHECK(topology->period() == log);
    CHECK(analyse(*topology).rounds_to_consensus == log);
    if (log <= 5) CHECK(rounds_to_mean(*topology, log) == log);
  }
  for (const int n : {3, 5, 6, 12, 63})
    CHECK_FALSE(analyse(*make("directed-exp", n)).rounds_to_consensus.has_value());
}

TEST_CASE("topology/static: shift-one pairs the halves and mixes at the ring's rate") {
  CHECK(drawn(make("shift-one", 6)->round(0), 6) == "[03][14][25]");
  CHECK(drawn(make("shift-one", 6)->round(1), 6) == "[04][15][23]");
  CHECK(drawn(make("shift-one", 6)->round(5), 6) == "[05][13][24]");
  for (const int n : {6, 8, 14, 32, 64})
    CHECK(gap("shift-one", n) == doctest::Approx(1 - std::cos(2 * kPi / n)).epsilon(1e-8));
  CHECK(contains(error_of("shift-one", 5),
                 "shift-one needs an even number of ranks, not 5; for 5 ranks: base-2"));
}

TEST_CASE("topology/static: weights uniform, Metropolis or given") {
  for (const char* type : {"hypercube", "torus", "static-exp", "static-ring", "directed-exp"}) {
    CAPTURE(type);  // all ranks have as many neighbours: the same
    CHECK(matrix_of(make(type, 8, 1, {{"weights", "uniform"}})->round(0), 8) ==
          matrix_of(make(type, 8, 1, {{"weights", "metropolis"}})->round(0), 8));
  }
  CHECK(make("static-ring", 5, 1, {{"weights", {0.5, 0.25, 0.25}}})->round(0).rows[0] ==
        Row{{0, 0.5}, {1, 0.25}, {4, 0.25}});
  CHECK(make("static-ring", 2, 1, {{"weights", {0.5, 0.25, 0.25}}})->round(0).rows[0] ==
        Row{{0, 0.5}, {1, 0.5}});
  // 1 × 3: up and down are the rank itself.
  CHECK(make("torus", 3, 1, {{"weights", {0.25, 0.125, 0.125, 0.25, 0.25}}})->round(0).rows[0] ==
        Row{{0, 0.5}, {1, 0.25}, {2, 0.25}});
  CHECK(make("hypercube", 4, 1, {{"weights", {0.5, 0.25, 0.25}}})->round(0).rows[3] ==
        Row{{1, 0.25}, {2, 0.25}, {3, 0.5}});
  // A directed ring, doubly stochastic all the same; zero weights are no neighbours.
  CHECK(make("static-ring", 5, 1, {{"weights", {0.5, 0.5, 0.0}}})->round(0).rows[0] ==
        Row{{0, 0.5}, {4, 0.5}});
  CHECK(make("directed-exp", 4, 1, {{"weights", {0.25, 0.75}}})->round(1).rows[0] ==
        Row{{0, 0.25}, {2, 0.75}});
  CHECK(make("torus", 1, 1, {{"weights", {0.2, 0.2, 0.2, 0.2, 0.2}}})->round(0).identity());
}

TEST_CASE("topology/static: weights that do not fit are refused by key") {
  const auto bad = [](const char* type, int n, const nlohmann::json& weights, const char* what) {
    const std::string error = error_of(type, n, {{"weights", weights}});
    CAPTURE(error);
    CHECK(contains(error, "2 [config] test: weights: "));
    CHECK(contains(error, what));
    CHECK_FALSE(contains(error, "\n"));
  };
  bad("torus", 6, "metropolys", "did you mean 'metropolis'?");
  bad("torus", 6, 0.5, "found 0.5");
  bad("torus", 6, {0.5, 0.5},
      "expected 5 weights for 6 ranks (own, up, down, left, right), found 2");
  bad("static-ring", 6, {0.5, 0.25, 0.2}, "must sum to 1, not 0.95");
  bad("static-ring", 6, {0.5, 0.75, -0.25}, "item 3 of 3");
  bad("static-ring", 6, {0.5, "a", 0.5}, "found \"a\"");
  bad("star", 6, {0.5, 0.5}, "expected \"uniform\" or \"metropolis\"");
  bad("star", 6, "uniform", "lose the mean");
  CHECK(error_of("star", 2, {{"weights", "uniform"}}) == "no error");
  CHECK(contains(error_of("torus", 6, {{"wieghts", "uniform"}}), "did you mean 'weights'?"));
  CHECK(contains(error_of("static-ring", 4, {{"weights", {0.0, 0.5, 0.5}}}), "only change places"));
  CHECK(contains(error_of("static-ring", 4, {{"weights", {1.0, 0.0, 0.0}}}), "never hears"));
  CHECK(contains(error_of("shift-one", 4, {{"weights", "uniform"}}),
                 "weights: is not a key of shift-one, but of "));
}

TEST_CASE("topology/static: a resolved config says which weights") {
  register_builtin_topologies();
  ConfigSection section({{"type", "star"}}, "test");
  make_topology(section, {4, 1});
  CHECK(section.resolved() == nlohmann::json{{"type", "star"}, {"weights", "metropolis"}});
}
