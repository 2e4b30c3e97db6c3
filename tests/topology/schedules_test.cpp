// The built-in topologies against their definitions, multiplied out in the tests' own rational
// numbers.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "tests/topology/support.h"
#include "topology/check.h"

using namespace starling;

TEST_CASE("topology/schedules: every round is doubly stochastic, exactly, for n = 1 … 33") {
  register_builtin_topologies();
  int checked = 0;
  for (const std::string& type : topologies().names()) {
    if (type == "custom") continue;
    for (int n = 1; n <= 33; ++n) {
      for (const int per_node : {1, 2, 4}) {
        if (per_node > 1 && type != "alternating-exp-ring") continue;
        const auto topology = try_make(type, n, per_node);
        if (!topology) continue;
        CAPTURE(type);
        CAPTURE(n);
        CAPTURE(per_node);
        const std::int64_t rounds = topology->period() > 0 ? topology->period() : 8;
        for (std::int64_t k = 0; k < rounds; ++k)
          REQUIRE(doubly_stochastic(matrix_of(topology->round(k), n)));
        const TopologyReport report = analyse(*topology);
        CHECK(report.row_stochastic);
        CHECK(report.column_stochastic);
        CHECK(report.mixes);
        CHECK(report.exact);
        CHECK(report.spectral_gap > 0.0);
        CHECK(report.spectral_gap <= 1.0);
        ++checked;
      }
    }
  }
  CHECK(checked >= 3 * 33 + 16 + 6);
}

TEST_CASE("topology/schedules: which numbers of ranks each type takes") {
  for (int n = 1; n <= 33; ++n) {
    CAPTURE(n);
    const bool power = (n & (n - 1)) == 0;
    const auto take = [n](std::initializer_list<const char*> types, bool expected) {
      for (const char* type : types)
        CHECK_MESSAGE((try_make(type, n) != nullptr) == expected, type);
    };
    take({"complete", "base-2", "random-matching", "torus", "static-exp", "static-ring", "star",
          "directed-exp"},
         true);
    take({"ring", "shift-one"}, n == 1 || n % 2 == 0);
    take({"one-peer-exp", "hypercube", "alternating-exp-ring"}, power);
    CHECK((try_make("alternating-exp-ring", n, 3) != nullptr) ==
          (n == 1 || n == 6 || n == 12 || n == 24));
  }
}

TEST_CASE("topology/schedules: ring pairs neighbours and leaves cos(2π/n) a round") {
  CHECK(drawn(make("ring", 6)->round(0), 6) == "[01][23][45]");
  CHECK(drawn(make("ring", 6)->round(1), 6) == "[05][12][34]");
  for (int n = 4; n <= 32; n += 2) {
    CAPTURE(n);
    const TopologyReport report = analyse(*make("ring", n));
    CHECK(report.spectral_gap ==
          doctest::Approx(1.0 - std::cos(2.0 * std::numbers::pi / n)).epsilon(1e-10));
    CHECK(report.rounds_to_consensus.has_value() == (n == 4));
  }
  CHECK(analyse(*make("ring", 2)).rounds_to_consensus == 1);
  CHECK(analyse(*make("ring", 4)).rounds_to_consensus == 2);
}

TEST_CASE("topology/schedules: one-peer-exp pairs i with i xor 2^k and is exact in log2 n rounds") {
  const auto eight = make("one-peer-exp", 8);
  CHECK(drawn(eight->round(0), 8) == "[01][23][45][67]");
  CHECK(drawn(eight->round(1), 8) == "[02][13][46][57]");
  CHECK(drawn(eight->round(2), 8) == "[04][15][26][37]");
  for (int log = 1, n = 2; n <= 32; ++log, n *= 2) {
    const auto topology = make("one-peer-exp", n);
    CHECK(topology->period() == log);
    CHECK(rounds_to_mean(*topology, log) == log);
    CHECK(analyse(*topology).rounds_to_consensus == log);
    CHECK(analyse(*topology).spectral_gap == 1.0);
  }
}

TEST_CASE("topology/schedules: alternating-exp-ring's example, N = 4 and L = 2") {
  const auto topology = make("alternating-exp-ring", 8, 2);
  REQUIRE(topology->period() == 4);
  CHECK(drawn(topology->round(0), 8) == "[01][23][4567]");
  CHECK(drawn(topology->round(1), 8) == "[0123][45][67]");
  CHECK(drawn(topology->round(2), 8) == "[01][2367][45]");
  CHECK(drawn(topology->round(3), 8) == "[0145][23][67]");
  for (const Group& group : topology->round(0).groups)
    CHECK(group.self_weight == 1.0 / static_cast<double>(group.ranks.size()));
  // ranks_per_node of the config counts before the site's.
  CHECK(drawn(make("alternating-exp-ring", 8, 1, {{"ranks_per_node", 2}})->round(0), 8) ==
        "[01][23][4567]");
}

TEST_CASE("topology/schedules: alternating-exp-ring is exact in 2 log2 N rounds from an even one") {
  for (const int per_node : {1, 2, 3, 4}) {
    for (int log = 1, nodes = 2; nodes * per_node <= 33; ++log, nodes *= 2) {
      CAPTURE(nodes);
      CAPTURE(per_node);
      const int n = nodes * per_node;
      const auto topology = make("alternating-exp-ring", n, per_node);
      CHECK(topology->period() == 2 * log);
      CHECK(rounds_to_mean(*topology, 2 * log) == 2 * log);
      CHECK(analyse(*topology).rounds_to_consensus == 2 * log);
      for (int start = 0; start < 2 * log; start += 2) {  // also from any other exponent
        FractionMatrix total = matrix_of(Round{}, n);
        for (int k = start; k < start + 2 * log; ++k)
          total = product(matrix_of(topology->round(k), n), total);
        bool mean = true;
        for (const auto& row : total) {
          for (const Fraction& entry : row) mean = mean && entry == Fraction(1, n);
        }
        CHECK(mean);
      }
    }
  }
}

TEST_CASE(
    "topology/schedules: base-2 reaches the exact mean in at most 2 log2 n + 1 rounds, in pairs") {
  const std::map<int, int> lengths{{3, 3}, {6, 4}, {12, 5}, {24, 6}, {25, 9}, {48, 7},
                                   {2, 1}, {4, 2}, {8, 3},  {16, 4}, {32, 5}};
  for (int n = 2; n <= 48; ++n) {
    CAPTURE(n);
    const auto topology = make("base-2", n);
    const auto period = static_cast<int>(topology->period());
    CHECK(period <= 2 * std::log2(n) + 1);
    if (lengths.contains(n)) CHECK(period == lengths.at(n));
    if (n <= 33 || n == 48) CHECK(rounds_to_mean(*topology, period) == period);
    CHECK(analyse(*topology).rounds_to_consensus == period);
    for (int k = 0; k < period; ++k) {
      std::set<int> used;
      for (const Group& group : topology->round(k).groups) {
        CHECK(group.ranks.size() == 2);
        used.insert(group.ranks.begin(), group.ranks.end());
      }
      CHECK(used.size() == 2 * topology->round(k).groups.size());
    }
  }
}

TEST_CASE("topology/schedules: base-2 for powers of two is one-peer-exp") {
  for (int n = 2; n <= 32; n *= 2) {
    const auto base = make("base-2", n), peer = make("one-peer-exp", n);
    REQUIRE(base->period() == peer->period());
    for (std::int64_t k = 0; k < base->period(); ++k)
      CHECK(matrix_of(base->round(k), n) == matrix_of(peer->round(k), n));
  }
}

TEST_CASE("topology/schedules: base-2 of three ranks as published") {
  const auto topology = make("base-2", 3);
  REQUIRE(topology->period() == 3);
  CHECK(drawn(topology->round(0), 3) == "[01]");
  CHECK(drawn(topology->round(1), 3) == "[12]");
  CHECK(drawn(topology->round(2), 3) == "[01]");
  CHECK(topology->round(0).groups[0].self_weight == 0.5);
  CHECK(topology->round(1).groups[0].self_weight == 1.0 / 3.0);
}

TEST_CASE(
    "topology/schedules: random-matching is a function of seed and round, pairs nearly all, and "
    "has no period") {
  for (const int n : {2, 5, 8, 33}) {
    CAPTURE(n);
    const auto a = make("random-matching", n, 1, {{"seed", 7}}),
               b = make("random-matching", n, 1, {{"seed", 7}});
    const auto other = make("random-matching", n, 1, {{"seed", 8}});
    CHECK(a->period() == 0);
    int same_seed = 0, same_round = 0;
    std::set<int> left_out;
    for (std::int64_t k = 63; k >= 0; --k) {  // in any order of asking
      const Round round = a->round(k);
      CHECK(matrix_of(round, n) == matrix_of(b->round(k), n));
      same_seed += matrix_of(round, n) == matrix_of(other->round(k), n);
      same_round += matrix_of(round, n) == matrix_of(a->round(k + 1), n);
      CHECK(static_cast<int>(round.groups.size()) == n / 2);
      for (int i = 0; i < n; ++i) {
        if (Topology::row(round, i).size() == 1) left_out.insert(i);
      }
    }
    if (n > 2) {
      CHECK(same_seed < 32);
      CHECK(same_round < 32);
    }
    if (n == 5) CHECK(left_out.size() == 5);
    if (n % 2 == 0) CHECK(left_out.empty());
  }
  // The seed is 0 where none is given.
  CHECK(matrix_of(make("random-matching", 8)->round(3), 8) ==
        matrix_of(make("random-matching", 8, 1, {{"seed", 0}})->round(3), 8));
}

TEST_CASE("topology/schedules: round k is round k mod period") {
  for (const auto& [type, n] : std::map<std::string, int>{{"complete", 5},
                                                          {"ring", 6},
                                                          {"one-peer-exp", 16},
                                                          {"alternating-exp-ring", 8},
                                                          {"base-2", 25}}) {
    CAPTURE(type);
    const auto topology = make(type, n);
    const std::int64_t period = topology->period();
    REQUIRE(period > 0);
    for (std::int64_t k = 0; k < period; ++k) {
      CHECK(matrix_of(topology->round(k), n) == matrix_of(topology->round(k + period), n));
      CHECK(matrix_of(topology->round(k), n) ==
            matrix_of(topology->round(k + 1000003 * period), n));
    }
    CHECK_THROWS_AS(topology->round(-1), Error);
  }
}

TEST_CASE("topology/schedules: rows are sparse, ascending and sum to one") {
  const Round round{{{{1, 4, 5}, 0.5}, {{2}, 1.0}}, {}};
  using Row = std::vector<std::pair<int, double>>;
  CHECK(Topology::row(round, 4) == Row{{1, 0.25}, {4, 0.5}, {5, 0.25}});
  CHECK(Topology::row(round, 2) == Row{{2, 1.0}});
  CHECK(Topology::row(round, 0) == Row{{0, 1.0}});
  CHECK(Topology::row({{{{0, 1}, 0.0}}, {}}, 0) == Row{{1, 1.0}});
  CHECK(Topology::row({{}, {{{0, 0.5}, {1, 0.5}}, {{1, 1.0}}}}, 0) == Row{{0, 0.5}, {1, 0.5}});
}
