// Hierarchical rounds: nodes that take their mean, and any other topology between them.
#include <doctest/doctest.h>

#include "tests/support/errors.h"
#include "tests/topology/support.h"
#include "topology/check.h"
#include "topology/mixing.h"

using namespace starling;

namespace {

using test::contains;

/// The mean of each node, the topology between, and back: M (W ⊗ I) M in fractions, M = I ⊗ J/L.
FractionMatrix composed(const Round& nodes, int count, int per_node) {
  const int n = count * per_node;
  Round inside;
  for (int node = 0; node < count; ++node) {
    Group& group = inside.groups.emplace_back();
    for (int r = 0; r < per_node; ++r) group.ranks.push_back(node * per_node + r);
    group.self_weight = 1.0 / per_node;
  }
  const FractionMatrix mean = matrix_of(per_node > 1 ? inside : Round{}, n),
                       between = matrix_of(nodes, count);
  FractionMatrix peers(static_cast<std::size_t>(n),
                       std::vector<Fraction>(static_cast<std::size_t>(n)));
  const auto size = static_cast<std::size_t>(per_node);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    for (std::size_t j = 0; j < peers.size(); ++j) {
      if (i % size == j % size) peers[i][j] = between[i / size][j / size];
    }
  }
  return product(mean, product(peers, mean));
}

}  // namespace

TEST_CASE("topology/hierarchical: with every inter the matrix is mean, inter between peers, mean") {
  register_builtin_topologies();
  int checked = 0;
  for (const std::string& inter : topologies().names()) {
    if (inter == "custom") continue;
    for (int nodes = 1; nodes <= 8; ++nodes) {
      const auto between = try_make(inter, nodes);
      for (const int per_node : {1, 2, 3}) {
        const int n = nodes * per_node;
        CAPTURE(inter);
        CAPTURE(nodes);
        CAPTURE(per_node);
        if (!between) {
          CHECK(contains(error_of("hierarchical", n, {{"inter", inter}}, per_node),
                         fmt::format("over {} nodes", nodes)));
          continue;
        }
        const auto topology = make("hierarchical", n, per_node, {{"inter", {{"type", inter}}}});
        CHECK(topology->ranks() == n);
        CHECK(topology->period() == between->period());
        const std::int64_t rounds = between->period() > 0 ? between->period() : 5;
        for (std::int64_t k = 0; k < rounds; ++k) {
          const Round round = topology->round(k);
          const FractionMatrix matrix = matrix_of(round, n);
          CHECK(matrix == composed(between->round(k), nodes, per_node));
          CHECK(matrix == matrix_of(over_ranks(round), n));
          CHECK(over_ranks(round).ranks_per_node == 1);
          CHECK(doubly_stochastic(matrix));
          // The sparse form says the same, by rows, by columns and applied.
          const MixingMatrix sparse(round, n);
          std::vector<double> x(static_cast<std::size_t>(n)), expected(x.size(), 0.0);
          for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i * i);
          FractionMatrix by_column(x.size(), std::vector<Fraction>(x.size()));
          for (int i = 0; i < n; ++i) {
            sparse.for_row(i, [&](int j, double w) {
              expected[static_cast<std::size_t>(i)] += w * x[static_cast<std::size_t>(j)];
            });
            sparse.for_column(i, [&](int j, double w) {
              by_column[static_cast<std::size_t>(j)][static_cast<std::size_t>(i)] = fraction_of(w);
            });
          }
          CHECK(by_column == matrix);
          sparse.apply(x, 1);
          for (std::size_t i = 0; i < x.size(); ++i) CHECK(x[i] == doctest::Approx(expected[i]));
          ++checked;
        }
        const TopologyReport report = analyse(*topology), of_nodes = analyse(*between);
        CHECK(report.exact);
        CHECK(report.mixes);
        if (nodes > 1) CHECK(report.rounds_to_consensus == of_nodes.rounds_to_consensus);
        if (nodes == 1) CHECK(report.rounds_to_consensus == (per_node > 1 ? 1 : 0));
        CHECK(report.spectral_gap == doctest::Approx(of_nodes.spectral_gap));
      }
    }
  }
  CHECK(checked > 200);
}

TEST_CASE("topology/hierarchical: rounds say nodes, and means of whole nodes are groups of ranks") {
  const auto topology = make("hierarchical", 12, 2, {{"inter", "base-2"}});
  CHECK(topology->period() == 4);  // of 6 nodes
  const Round pairs = topology->round(0);
  CHECK(pairs.ranks_per_node == 2);
  CHECK(pairs.groups.size() == 4);  // two pairs, two nodes alone
  CHECK_FALSE(pairs.identity());
  const Round ranks = over_ranks(pairs);
  CHECK(ranks.rows.empty());
  CHECK(ranks.groups[0].ranks == std::vector<int>{0, 1, 2, 3});
  CHECK(ranks.groups[0].self_weight == 0.25);
  CHECK(over_ranks(topology->round(1)).rows.size() == 12);  // 1/3 and 2/3: no mean
  CHECK(make("hierarchical", 8, 2, {{"inter", "complete"}})->round(0).groups[0].ranks ==
        std::vector<int>{0, 1, 2, 3});
  // One rank a node is the inter itself, one node is the mean, one rank the identity.
  CHECK(make("hierarchical", 4, 1)->round(0).ranks_per_node == 1);
  CHECK(analyse(*make("hierarchical", 4, 4)).rounds_to_consensus == 1);
  CHECK(make("hierarchical", 1, 4)->round(0).identity());
  // The default inter is base-2; ranks_per_node of the config counts before the site's; keys of
  // inter are read.
  CHECK(make("hierarchical", 12, 2)->period() == 4);
  CHECK(make("hierarchical", 12, 2, {{"ranks_per_node", 4}})->period() == 3);
  CHECK(
      matrix_of(make("hierarchical", 8, 2, {{"inter", {{"type", "random-matching"}, {"seed", 7}}}})
                    ->round(0),
                8) !=
      matrix_of(make("hierarchical", 8, 2, {{"inter", {{"type", "random-matching"}, {"seed", 8}}}})
                    ->round(0),
                8));
  // Nodes of nodes are larger nodes.
  const auto nested =
      make("hierarchical", 24, 2,
           {{"inter", {{"type", "hierarchical"}, {"ranks_per_node", 3}, {"inter", "ring"}}}});
  CHECK(nested->round(0).ranks_per_node == 6);
  CHECK(matrix_of(nested->round(1), 24) ==
        matrix_of(make("hierarchical", 24, 6, {{"inter", "ring"}})->round(1), 24));
}

TEST_CASE(
    "topology/hierarchical: a resolved config names inter in full, also where it was a name "
    "alone") {
  register_builtin_topologies();
  ConfigSection section({{"type", "hierarchical"}, {"inter", "star"}}, "test");
  make_topology(section, {8, 2});
  const nlohmann::json resolved = section.resolved();
  CHECK(resolved == nlohmann::json{{"type", "hierarchical"},
                                   {"ranks_per_node", 2},
                                   {"inter", {{"type", "star"}, {"weights", "metropolis"}}}});
  ConfigSection again(resolved, "test");
  CHECK(make_topology(again, {8, 1})->round(0).ranks_per_node == 2);
}

TEST_CASE("topology/hierarchical: errors") {
  CHECK(error_of("hierarchical", 9, {}, 2) ==
        "2 [topology] hierarchical needs whole nodes: a number of ranks that ranks_per_node = 2 "
        "divides, not 9; set ranks_per_node, or for 9 ranks: base-2, complete, directed-exp, "
        "random-matching, star, static-exp, static-ring, torus");
  CHECK(error_of("hierarchical", 6, {{"inter", "ring"}}, 2) ==
        "2 [topology] hierarchical over 3 nodes of 2 ranks, inter: ring needs an even number of "
        "ranks, not 3; for 3 ranks: base-2, complete, "
        "directed-exp, hierarchical, random-matching, star, static-exp, static-ring, torus");
  CHECK(contains(error_of("hierarchical", 6, {{"inter", "rign"}}, 2),
                 "inter.type: unknown topology 'rign'; did you mean 'ring'?"));
  CHECK(contains(error_of("hierarchical", 6, {{"inter", {{"type", "torus"}, {"wieghts", 1}}}}, 2),
                 "inter.wieghts: unknown key; did you mean 'weights'?"));
  CHECK(contains(error_of("hierarchical", 6, {{"inter", 3}}, 2), "inter: expected an object"));
  CHECK(contains(error_of("hierarchical", 6, {{"intre", "ring"}}, 2), "did you mean 'inter'?"));
  CHECK(contains(
      error_of(
          "hierarchical", 4,
          {{"inter", {{"type", "custom"}, {"rounds", {{{{"ranks", {0, 1}}, {"weight", 0}}}}}}}}, 2),
      "only change places"));
  // A round of a plug-in that leaves a node out.
  Round round;
  round.groups = {{{0, 1}, 0.5}};
  round.ranks_per_node = 2;
  CHECK(contains(structural_fault(round, 6), "names no node 2"));
  CHECK(contains(structural_fault(round, 5), "do not divide"));
  CHECK(structural_fault(round, 4).empty());
}

TEST_CASE("topology/hierarchical: a custom round over nodes") {
  const auto custom = [](int n, const char* rounds) {
    return make("custom", n, 1, {{"rounds", nlohmann::json::parse(rounds)}});
  };
  const auto topology = custom(
      6,
      R"([{"ranks_per_node": 2, "groups": [{"ranks": [0, 2]}]}, {"groups": [{"ranks": [0, 1, 2, 3]}]}])");
  CHECK(topology->round(0).ranks_per_node == 2);
  CHECK(drawn(over_ranks(topology->round(0)), 6) == "[0145][23]");
  CHECK(drawn(topology->round(1), 6) == "[0123]");
  const auto rows = custom(
      4, R"([{"ranks_per_node": 2, "rows": [[[0, 0.75], [1, 0.25]], [[0, 0.25], [1, 0.75]]]}])");
  CHECK(Topology::row(rows->round(0), 3) ==
        std::vector<std::pair<int, double>>{{0, 0.125}, {1, 0.125}, {2, 0.375}, {3, 0.375}});
  CHECK(contains(error_of_custom(6, R"([{"ranks_per_node": 4, "groups": []}])"),
                 "rounds[0].ranks_per_node: must be a number of ranks that divides"));
  CHECK(contains(error_of_custom(6, R"([{"ranks_per_node": 2, "groups": [{"ranks": [0, 3]}]}])"),
                 "node 3 does not exist: there are 3 nodes"));
  CHECK(contains(error_of_custom(6, R"([{"ranks_per_node": 2, "groups": [], "rows": []}])"),
                 "groups and rows"));
}
