// What may be trained with and what may not, and the figures.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/topology/support.h"
#include "topology/check.h"
#include "topology/mixing.h"
#include "topology/picture.h"
#include "topology/rational.h"

using namespace starling;

namespace {

using test::contains;

/// A topology from outside the tree, well formed or not.
class Given : public Topology {
 public:
  Given(int ranks, std::vector<Round> rounds) : Topology(ranks), rounds_(std::move(rounds)) {}
  std::int64_t period() const override { return static_cast<std::int64_t>(rounds_.size()); }

 protected:
  Round make_round(std::int64_t k) const override { return rounds_[static_cast<std::size_t>(k)]; }

 private:
  std::vector<Round> rounds_;
};

std::string check_error(const Topology& topology) {
  return test::error_text([&] { check_topology(topology, "given"); });
}

/// Whether every element is closed, in order.
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
      if (open.empty()) return xml.substr(end) == ">\n";
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return false;
}

}  // namespace

TEST_CASE("topology/check: errors of numbers of ranks say which fit and who takes them") {
  CHECK(error_of("ring", 5) ==
        "2 [topology] ring needs an even number of ranks, not 5; for 5 ranks: base-2, complete, "
        "directed-exp, hierarchical, random-matching, star, static-exp, static-ring, torus");
  CHECK(error_of("one-peer-exp", 6) ==
        "2 [topology] one-peer-exp needs a power of two of ranks (1, 2, 4, 8, …), not 6; for 6 "
        "ranks: base-2, complete, directed-exp, "
        "hierarchical, random-matching, ring, shift-one, star, static-exp, static-ring, torus");
  CHECK(error_of("alternating-exp-ring", 4, {}, 4) ==
        "2 [topology] alternating-exp-ring needs a number of nodes (ranks / ranks_per_node) that "
        "is 2, 4, 8, …, not 4/4; set ranks_per_node, or for 4 ranks: base-2, complete, "
        "directed-exp, hierarchical, hypercube, one-peer-exp, random-matching, ring, shift-one, "
        "star, static-exp, static-ring, torus");
  CHECK(contains(error_of("alternating-exp-ring", 9, {}, 2), "not 9/2"));
  CHECK(contains(error_of("bse-2", 4), "did you mean 'base-2'?"));
  CHECK(contains(error_of("ring", 4, {{"sede", 3}}), "sede"));
  CHECK(contains(error_of("random-matching", 4, {{"seed", -1}}), "seed"));
  CHECK(contains(error_of("random-matching", 4, {{"seed", 1.5}}), "seed"));
  CHECK(contains(error_of("alternating-exp-ring", 4, {{"ranks_per_node", 0}}), "ranks_per_node"));
}

TEST_CASE(
    "topology/check: a config that changes its type alone stays valid, and base-2 is the default") {
  CHECK(error_of("ring", 4, {{"ranks_per_node", 2}}) == "no error");
  register_builtin_topologies();
  ConfigSection section(nlohmann::json::object(), "test");
  CHECK(make_topology(section, {6, 1})->period() == 4);
}

TEST_CASE("topology/check: what an algorithm asks of a topology, and which ones have it") {
  const auto fault = [](const char* type, TopologyKind kind) {
    return kind_fault(*make(type, 8), kind);
  };
  for (const char* type : {"ring", "base-2", "random-matching", "directed-exp"}) {
    CHECK(fault(type, TopologyKind::kDoublyStochastic).empty());
    CHECK(fault(type, TopologyKind::kSymmetricFixed) == "its rounds differ");
  }
  for (const char* type : {"ring", "random-matching", "hierarchical", "star", "shift-one"})
    CHECK(fault(type, TopologyKind::kSymmetric).empty());
  for (const char* type : {"static-ring", "complete", "star", "torus", "hypercube"})
    CHECK(fault(type, TopologyKind::kSymmetricFixed).empty());
  CHECK(fault("directed-exp", TopologyKind::kSymmetric) ==
        "in its round 0 ranks 0 and 1 give each other different weights");
  CHECK(kind_fault(*make("directed-exp", 1), TopologyKind::kSymmetricFixed).empty());
  // Its rows and columns sum to 1, and 0 → 1 → 2 → 0 is one way alone.
  const Given turns(3, {{{}, {{{0, 0.5}, {1, 0.5}}, {{1, 0.5}, {2, 0.5}}, {{0, 0.5}, {2, 0.5}}}}});
  CHECK(kind_fault(turns, TopologyKind::kSymmetric) ==
        "in its round 0 ranks 0 and 1 give each other different weights");
  const ConfigSection section(nlohmann::json::object(), "mine.json");
  CHECK(test::error_text([&] {
          check_kind(*make("ring", 6), "ring", TopologyKind::kSymmetricFixed, "mine", {6, 6},
                     section);
        }) ==
        "[config] mine.json: type: 'ring' for 6 ranks is not for the algorithm mine: its rounds "
        "differ; these are: complete, hierarchical, star, static-ring, torus");
}

TEST_CASE("topology/check: good custom topologies") {
  const auto custom = [](int n, const char* rounds) {
    return make("custom", n, 1, {{"rounds", nlohmann::json::parse(rounds)}});
  };
  const auto pairs = custom(
      4,
      R"([[{"ranks": [1, 0], "weight": 0.5}, {"ranks": [2, 3], "weight": 0.5}], [{"ranks": [0, 2]}, {"ranks": [1, 3]}]])");
  CHECK(pairs->period() == 2);
  CHECK(pairs->round(0).groups[0].ranks == std::vector<int>{0, 1});
  CHECK(analyse(*pairs).rounds_to_consensus == 2);
  CHECK(rounds_to_mean(*pairs, 2) == 2);

  // Rows that are not symmetric, but doubly stochastic: a lazy directed ring.
  const auto ring = custom(
      3, R"([{"rows": [[[0, 0.5], [1, 0.5]], [[2, 0.5], [1, 0.5]], [[2, 0.5], [0, 0.5]]]}])");
  CHECK(ring->round(0).rows[1][0].first == 1);  // sorted
  const TopologyReport report = analyse(*ring);
  CHECK(report.exact);
  CHECK(report.mixes);
  CHECK_FALSE(report.rounds_to_consensus.has_value());
  // complex eigenvalues 1/2 + exp(±2πi/3)/2 have modulus 1/2
  CHECK(report.spectral_gap == doctest::Approx(0.5));

  // Thirds as doubles print them; a group's default weight; the identity round; a group of one.
  CHECK(analyse(*custom(3, R"([[{"ranks": [0, 1, 2], "weight": 0.3333333333333333}]])"))
            .rounds_to_consensus == 1);
  CHECK(analyse(*custom(3, R"([[{"ranks": [2, 0, 1]}], []])")).rounds_to_consensus == 1);
  CHECK(custom(2, R"([[{"ranks": [0, 1]}], [{"ranks": [1], "weight": 1}]])")->round(1).identity());
  // Weights that are no small fractions are checked within 1e-12.
  const auto odd = custom(2, R"([[{"ranks": [0, 1], "weight": 0.123456789123}]])");
  CHECK_FALSE(analyse(*odd).exact);
  CHECK(analyse(*odd).spectral_gap == doctest::Approx(1.0 - std::fabs(2 * 0.123456789123 - 1)));
  // A job that is tried on one rank.
  CHECK(custom(1, R"([[{"ranks": [0, 1]}]])")->round(0).identity());
}

TEST_CASE("topology/check: custom topologies that keep no mean are refused by round and row") {
  CHECK(
      error_of_custom(2, R"([[{"ranks": [0, 1]}], {"rows": [[[0, 1]], [[0, 0.5], [1, 0.4]]]}])") ==
      "2 [topology] 'custom' for 2 ranks: row 1 of round 1 sums to 0.9, not 1; the weights that a "
      "rank mixes must sum to 1");
  CHECK(error_of_custom(2, R"([{"rows": [[[0, 0.5], [1, 0.5]], [[1, 1]]]}])") ==
        "2 [topology] 'custom' for 2 ranks: column 0 of round 0 sums to 0.5, not 1; columns must "
        "sum to 1 too, or the mean of all ranks drifts");
  CHECK(contains(
      error_of_custom(
          3, R"([{"rows": [[[0, 0.333333], [1, 0.333333], [2, 0.333333]], [[1, 1]], [[2, 1]]]}])"),
      "row 0 of round 0 sums to 0.999999"));
}

TEST_CASE("topology/check: custom topologies that never mix are refused") {
  CHECK(error_of_custom(2, R"([[{"ranks": [0, 1], "weight": 0}]])") ==
        "2 [topology] 'custom' for 2 ranks does not mix in its 1 round: values only change places "
        "and never mix; give ranks a self weight above 0");
  CHECK(contains(error_of_custom(3, R"([{"rows": [[[1, 1]], [[2, 1]], [[0, 1]]]}])"),
                 "only change places"));
  CHECK(contains(error_of_custom(4, R"([[{"ranks": [0, 1]}, {"ranks": [2, 3]}]])"),
                 "rank 2 never hears from rank 0"));
  CHECK(contains(error_of_custom(2, R"([[]])"), "rank 1 never hears from rank 0"));
  CHECK(contains(error_of_custom(2, R"([[{"ranks": [0, 1], "weight": 1}]])"), "never hears"));
  // Bipartite mixing of period 2: no rank keeps anything of its own, the two sides only trade
  // places.
  CHECK(contains(
      error_of_custom(
          4,
          R"([{"rows": [[[1, 0.5], [3, 0.5]], [[0, 0.5], [2, 0.5]], [[1, 0.5], [3, 0.5]], [[0, 0.5], [2, 0.5]]]}])"),
      "only change places"));
  // A swap in one round is fine where others mix.
  CHECK(error_of_custom(
            2, R"([[{"ranks": [0, 1], "weight": 0}], [{"ranks": [0, 1], "weight": 0.75}]])") ==
        "no error");
}

TEST_CASE("topology/check: malformed custom topologies are refused by key") {
  const auto bad = [](const char* rounds, const char* place, const char* what) {
    const std::string error = error_of_custom(3, rounds);
    CAPTURE(error);
    CHECK(contains(error, "2 [config] test: "));
    CHECK(contains(error, place));
    CHECK(contains(error, what));
    CHECK_FALSE(contains(error, "\n"));
  };
  CHECK(contains(error_of("custom", 3), "rounds: is required"));
  bad("[]", "rounds", "a list of rounds that is not empty");
  bad("3", "rounds", "at least one round");
  bad("[3]", "rounds[0]", "must be a list of groups");
  bad(R"([[{"ranks": [0, 1, 0]}]])", "rounds[0][0].ranks", "rank 0 is twice");
  bad(R"([[{"ranks": [0, 1]}, {"ranks": [1, 2]}]])", "rounds[0][1].ranks", "rank 1 is twice");
  bad(R"([[{"ranks": [0, 3]}]])", "rounds[0][0].ranks[1]",
      "rank 3 does not exist: there are 3 ranks, 0 to 2");
  bad(R"([[{"ranks": [-1, 0]}]])", "rounds[0][0].ranks[0]", "rank -1 does not exist");
  bad(R"([[{"ranks": [0, 18446744073709551615]}]])", "rounds[0][0].ranks[1]", "does not exist");
  bad(R"([[{"ranks": [0, 1.5]}]])", "rounds[0][0].ranks[1]", "must be a rank");
  bad(R"([[{"ranks": []}]])", "rounds[0][0].ranks", "must be a list of ranks");
  bad(R"([[{"ranks": "01"}]])", "rounds[0][0].ranks", "must be a list of ranks");
  bad(R"([[{"weight": 0.5}]])", "rounds[0][0].ranks", "must be a list of ranks");
  bad(R"([[[0, 1]]])", "rounds[0][0]", "must be a group");
  bad(R"([[{"ranks": [0, 1], "weight": 1.1}]])", "rounds[0][0].weight", "0 … 1");
  bad(R"([[{"ranks": [0, 1], "weight": -0.1}]])", "rounds[0][0].weight", "0 … 1");
  bad(R"([[{"ranks": [0, 1], "weight": "a"}]])", "rounds[0][0].weight", "0 … 1");
  bad(R"([[{"ranks": [0], "weight": 0.5}]])", "rounds[0][0].weight", "must be 1");
  bad(R"([[{"ranks": [0, 1], "wieght": 0.5}]])", "rounds[0][0].wieght", "did you mean 'weight'?");
  bad(R"([{"row": []}])", "rounds[0].row", "did you mean 'rows'?");
  bad(R"([{}])", "rounds[0]", "must be a list of groups");
  bad(R"([{"rows": [[[0, 1]], [[1, 1]]]}])", "rounds[0].rows",
      "3 rows, one for each rank, not 2 rows");
  bad(R"([{"rows": [[[0, 1]], [[1, 1]], [[3, 1]]]}])", "rounds[0].rows[2][0][0]",
      "rank 3 does not exist");
  bad(R"([{"rows": [[[0, 1]], [[1, 1]], [[2, 0.5], [2, 0.5]]]}])", "rounds[0].rows[2]",
      "rank 2 is twice");
  bad(R"([{"rows": [[[0, 1]], [[1, 1]], [[2]]]}])", "rounds[0].rows[2][0]", "pair [rank, weight]");
  bad(R"([{"rows": [[[0, 1.5], [1, -0.5]], [[1, 1]], [[2, 1]]]}])", "rounds[0].rows[0][0][1]",
      "0 … 1");
  bad(R"([{"rows": [[[0, 1]], [[1, 1]], []]}])", "rounds[0].rows[2]",
      "must be a list of [rank, weight] pairs");
}

TEST_CASE(
    "topology/check: topologies of plug-ins are checked for form before anything is computed") {
  CHECK(contains(check_error(Given(3, {{{{{0, 1}, 0.5}, {{1, 2}, 0.5}}, {}}})),
                 "round 0: rank 1 is in two groups"));
  CHECK(contains(check_error(Given(3, {{{{{0, 3}, 0.5}}, {}}})), "rank 3"));
  CHECK(contains(check_error(Given(3, {{{{{1, 0}, 0.5}}, {}}})), "ascending"));
  CHECK(contains(check_error(Given(2, {{{{{0, 1}, 1.5}}, {}}})), "self weight 1.5"));
  CHECK(contains(check_error(Given(2, {{{}, {{{0, 1.0}}}}})), "1 rows for 2 ranks"));
  CHECK(
      contains(check_error(Given(2, {{{}, {{{0, 1.5}, {1, -0.5}}, {{1, 1.0}}}}})), "weight -0.5"));
  CHECK(contains(check_error(Given(2, {{{}, {{}, {{1, 1.0}}}}})), "row 0 of round 0 sums to 0"));
  CHECK(check_error(Given(2, {{{{{0, 1}, 0.5}}, {}}})).empty());
}

TEST_CASE("topology/check: a consensus that takes several periods is found") {
  // W - J/3 is nilpotent of order 2: not exact after one round, exact after two.
  const auto w = [](double a, double b, double c) {
    return std::vector<std::pair<int, double>>{{0, a}, {1, b}, {2, c}};
  };
  const double t = 1.0 / 12;
  const Given topology(3, {{{},
                            {w(4 * t + t, 4 * t + t, 4 * t - 2 * t),
                             w(4 * t - t, 4 * t - t, 4 * t + 2 * t), w(4 * t, 4 * t, 4 * t)}}});
  const TopologyReport report = check_topology(topology, "given");
  CHECK(report.exact);
  CHECK(report.rounds_to_consensus == 2);
  CHECK(report.spectral_gap == 1.0);
  CHECK(rounds_to_mean(topology, 5) == 2);
}

TEST_CASE("topology/check: almost exact is not exact") {
  // Within 1e-9 of the mean after one period, but provably not it.
  const double off = 0.5 + 0x1p-19;
  const Given topology(2, {{{{{0, 1}, off}}, {}}, {{{{0, 1}, off}}, {}}});
  CHECK_FALSE(analyse(topology).rounds_to_consensus.has_value());
  CHECK(analyse(topology).spectral_gap == doctest::Approx(1.0 - 0x1p-18));
}

TEST_CASE("topology/check: more than 64 ranks, on sparse rows") {
  CHECK(analyse(*make("hypercube", 64)).exact);
  const TopologyReport base = analyse(*make("base-2", 100));
  CHECK_FALSE(base.exact);
  CHECK(base.rounds_to_consensus == make("base-2", 100)->period());
  CHECK(base.spectral_gap == 1.0);
  for (const int n : {66, 128, 500, 1024}) {
    CAPTURE(n);
    const TopologyReport ring = analyse(*make("ring", n));
    CHECK(ring.mixes);
    CHECK_FALSE(ring.rounds_to_consensus.has_value());
    CHECK(ring.spectral_gap ==
          doctest::Approx(1.0 - std::cos(2.0 * std::numbers::pi / n)).epsilon(1e-4));
  }
  CHECK(analyse(*make("complete", 1000)).rounds_to_consensus == 1);
  const double random = analyse(*make("random-matching", 256)).spectral_gap;
  CHECK(random > 0.2);  // (1 - 1/√2 in expectation)
  CHECK(random < 0.4);
}

TEST_CASE("topology/check: slowly mixing schedules of 4,096 ranks have the gap that is known") {
  constexpr double kPi = std::numbers::pi;
  register_builtin_topologies();
  const auto gap = [](const char* type) {
    ConfigSection section({{"type", type}}, "test");
    return check_topology(*make_unchecked_topology(section, {4096, 1}), type).spectral_gap;
  };
  CHECK(gap("ring") == doctest::Approx(1.0 - std::cos(2 * kPi / 4096)).epsilon(1e-3));
  CHECK(gap("torus") == doctest::Approx(0.4 * (1.0 - std::cos(2 * kPi / 64))).epsilon(1e-3));
  CHECK(gap("hypercube") == doctest::Approx(2.0 / 13));
  CHECK(gap("star") == doctest::Approx(1.0 / 4096).epsilon(1e-3));
}

TEST_CASE(
    "topology/check: whether ranks reach each other is decided where some keep nothing of their "
    "own, too") {
  // The same topology by both ways: a swap in one round takes the general one.
  CHECK(contains(error_of_custom(4, R"([[{"ranks": [0, 1], "weight": 0}], [{"ranks": [2, 3]}]])"),
                 "rank 2 never hears from rank 0"));
  CHECK(error_of_custom(
            4, R"([[{"ranks": [0, 1], "weight": 0}], [{"ranks": [2, 3]}], [{"ranks": [1, 2]}]])") ==
        "no error");
  CHECK(contains(error_of_custom(4, R"([[{"ranks": [0, 1]}], [{"ranks": [2, 3]}]])"),
                 "rank 2 never hears from rank 0"));
  // A hundred ranks in one directed circle that only shift, and one pair that mixes.
  nlohmann::json rows = nlohmann::json::array();
  for (int i = 0; i < 100; ++i) rows.push_back({{(i + 99) % 100, 1.0}});
  const nlohmann::json shift = {{"rows", rows}};
  CHECK(contains(error_of("custom", 100, {{"rounds", {shift}}}), "only change places"));
  CHECK(error_of("custom", 100, {{"rounds", {shift, {{{"ranks", {0, 1}}}}}}}) == "no error");
}

TEST_CASE("topology/check: a schedule too long to check is refused in one line") {
  const std::string error = error_of("shift-one", 65536);
  CHECK(contains(error, "too many to check"));
}

TEST_CASE("topology/mixing: the product of a period, and how far it is from the mean") {
  const auto directed = make("directed-exp", 8);
  for (const auto& row : dense_product(one_period(*directed))) {
    for (const double entry : row) CHECK(entry == doctest::Approx(0.125));
  }
  CHECK(product_deviation(one_period(*directed)).largest < 1e-15);
  const auto ring = make("static-ring", 5);
  CHECK(dense_product(one_period(*ring))[0] ==
        std::vector<double>{1.0 / 3, 1.0 / 3, 0.0, 0.0, 1.0 / 3});
  CHECK(product_deviation(one_period(*ring)).largest == doctest::Approx(0.2));
  CHECK(product_deviation(one_period(*ring)).columns == 5);
  CHECK(product_deviation(one_period(*make("base-2", 1000))).largest < 1e-13);
  const auto star = make("star", 300);
  CHECK(product_deviation(one_period(*star)).largest == doctest::Approx(1.0 - 2.0 / 300));
  // Products multiply from the left: W(1) W(0), which here do not commute.
  const auto two =
      make("custom", 3, 1,
           {{"rounds", nlohmann::json::parse(R"([[{"ranks": [0, 1]}], [{"ranks": [1, 2]}]])")}});
  CHECK(dense_product(one_period(*two))[2] == std::vector<double>{0.25, 0.25, 0.5});
  CHECK(dense_product(one_period(*two))[0] == std::vector<double>{0.5, 0.5, 0.0});
}

TEST_CASE("topology/rational: fractions are recovered from doubles, and only those") {
  CHECK(nearest_fraction(1.0 / 3) == Rational{1, 3});
  CHECK(nearest_fraction(2.0 / 3) == Rational{2, 3});
  CHECK(nearest_fraction(1.0 - 1.0 / 3) == Rational{2, 3});
  CHECK(nearest_fraction(0.0) == Rational{0, 1});
  CHECK(nearest_fraction(1.0) == Rational{1, 1});
  CHECK(nearest_fraction(0.1) == Rational{1, 10});
  CHECK(nearest_fraction(-0.75) == Rational{-3, 4});
  CHECK(nearest_fraction(0x1p-20) == Rational{1, 1 << 20});
  CHECK_FALSE(nearest_fraction(0x1p-21).has_value());
  CHECK_FALSE(nearest_fraction(0.3333333333).has_value());
  CHECK_FALSE(nearest_fraction(std::sqrt(0.5)).has_value());
  CHECK_FALSE(nearest_fraction(std::nan("")).has_value());
  CHECK_FALSE(nearest_fraction(1e300).has_value());
  for (std::int64_t q = 1; q <= 1 << 20; q = q * 3 + 1) {
    for (std::int64_t p = 1; p < q; p = p * 2 + 3) {
      const std::int64_t divisor = std::gcd(p, q);
      CHECK(nearest_fraction(static_cast<double>(p) / static_cast<double>(q)) ==
            Rational{p / divisor, q / divisor});
    }
  }
  CHECK(weight_text(1.0 / 3) == "1/3");
  CHECK(weight_text(1.0) == "1");
  CHECK(weight_text(0.3333333333) == "0.3333333333");
}

TEST_CASE("topology/rational: sums are proven, also with denominators whose product overflows") {
  CHECK(sums_to_one({{1, 2}, {1, 3}, {1, 6}}));
  CHECK_FALSE(sums_to_one({{1, 2}, {1, 3}, {1, 7}}));
  CHECK_FALSE(sums_to_one({}));
  std::vector<Rational> terms;  // 1/(2·3) + 1/(3·4) + … + 1/(999·1000) + 1/1000 = 1/2
  for (std::int64_t k = 2; k < 1000; ++k) terms.push_back({1, k * (k + 1)});
  terms.push_back({1, 1000});
  terms.push_back({1, 2});
  CHECK(sums_to_one(terms));
  terms.back() = {(1 << 19) + 1, 1 << 20};
  CHECK_FALSE(sums_to_one(terms));
}

TEST_CASE("topology/svg: a picture of every type is well formed") {
  register_builtin_topologies();
  for (const std::string& type : topologies().names()) {
    if (type == "custom") continue;
    for (const int n : {1, 2, 8, 64, 128}) {
      CAPTURE(type);
      CAPTURE(n);
      const auto topology = try_make(type, n, n >= 8 ? 2 : 1);
      if (!topology) continue;
      const std::string svg = topology_svg(*topology, analyse(*topology), type + " <8>");
      CHECK(well_formed(svg));
      CHECK(contains(svg, "&lt;8&gt;"));
      CHECK(contains(svg, "round 0"));
      CHECK_FALSE(contains(svg, "nan"));
      CHECK_FALSE(contains(svg, "inf"));
    }
  }
  // Arrows where one only gives; lines where both do; nodes where there are some.
  const auto draw = [](const char* type) {
    const auto topology = make(type, 8, 2);
    return topology_svg(*topology, analyse(*topology), type);
  };
  CHECK(contains(draw("directed-exp"), "url(#arrow)"));
  CHECK_FALSE(contains(draw("hypercube"), "url(#arrow)"));
  CHECK(contains(draw("hierarchical"), "<title>node 3</title>"));
  // An arrow goes from the middle of a dot to the edge of another.
  struct Dot {
    double x, y, r;
  };
  std::vector<Dot> dots;
  std::vector<std::array<double, 4>> arrows;
  std::istringstream svg(draw("directed-exp"));
  for (std::string line; std::getline(svg, line);) {
    Dot dot{};
    std::array<double, 4> ends{};
    const bool circle = std::sscanf(line.c_str(), R"(<circle cx="%lf" cy="%lf" r="%lf")", &dot.x,
                                    &dot.y, &dot.r) == 3;
    if (circle && contains(line, "<title>rank ")) dots.push_back(dot);
    const int read = std::sscanf(line.c_str(), R"(<line x1="%lf" y1="%lf" x2="%lf" y2="%lf")",
                                 &ends[0], &ends[1], &ends[2], &ends[3]);
    if (read == 4 && contains(line, "url(#arrow)")) arrows.push_back(ends);
  }
  CHECK(dots.size() == 3 * 8);
  // half a round of the three goes both ways: with the rank that is four away
  CHECK(arrows.size() == 2 * 8);
  for (const auto& [x1, y1, x2, y2] : arrows) {
    double begins = 1e9, ends = 1e9;
    for (const Dot& dot : dots) {
      begins = std::min(begins, std::hypot(x1 - dot.x, y1 - dot.y));
      // and is so much shorter than the way to its middle
      const double length = std::hypot(x2 - x1, y2 - y1);
      ends = std::min(ends, std::abs(std::hypot(x2 - dot.x, y2 - dot.y) - dot.r) +
                                std::abs(std::hypot(x1 - dot.x, y1 - dot.y) - dot.r - length));
    }
    CHECK(begins < 0.2);
    CHECK(ends < 0.4);
  }
}

TEST_CASE("topology/mixing: the curve of disagreement") {
  const std::vector<double> exact = disagreement_curve(*make("one-peer-exp", 8), 4);
  REQUIRE(exact.size() == 5);
  CHECK(exact[0] == 1.0);
  // 4 of 8 dimensions are left, one of them the mean
  CHECK(exact[1] == doctest::Approx(std::sqrt(3.0 / 7)));
  CHECK(exact[2] == doctest::Approx(std::sqrt(1.0 / 7)));
  CHECK(exact[3] < 1e-15);
  const std::vector<double> ring = disagreement_curve(*make("ring", 16), 200);
  CHECK(ring[200] / ring[199] ==
        doctest::Approx(std::cos(2 * std::numbers::pi / 16)).epsilon(1e-6));
}
