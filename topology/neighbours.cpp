#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"
#include "topology/builtin.h"
#include "topology/round_table.h"

// The topologies in which every rank mixes with all neighbours of a graph at once.
namespace starling {
namespace {

/// How a rank weighs its own value and its neighbours': the key `weights`.
struct NeighbourWeights {
  enum class Rule {
    /// 1/(d + 1) each, d the number of different neighbours: doubly stochastic if all ranks have
    /// the same number
    kUniform,
    /// 1/(1 + max(d_i, d_j)), oneself the rest: doubly stochastic on every undirected graph
    kMetropolis,
    kGiven,  ///< a list: one's own weight, then that of each neighbour in the topology's order
  } rule = Rule::kUniform;
  std::vector<double> given;
};
using Rule = NeighbourWeights::Rule;
using NeighboursOf = std::function<std::vector<int>(int rank)>;

const char* rule_name(Rule rule) { return rule == Rule::kUniform ? "uniform" : "metropolis"; }

/// 1 - Σ of 1/(1 + max(d_i, d_j)), summed by denominators so that a weight like 1/63 comes out to
/// the last bit or two.
double metropolis_rest(const std::map<int, int>& denominators) {
  double rest = 1.0;
  for (const auto& [denominator, count] : denominators)
    rest -= static_cast<double>(count) / denominator;
  return std::max(rest, 0.0);
}

/// Reads `weights`. `order` names a list's numbers, "own, left, right"; "" where a list makes no
/// sense. `numbers` is how many those are.
NeighbourWeights read_weights(ConfigSection& section, Rule fallback, const std::string& order,
                              int ranks, int numbers) {
  const std::string doc = fmt::format(
      "\"uniform\": 1/(neighbours + 1); \"metropolis\": 1/(1 + the larger number of neighbours){}; "
      "default {}",
      order.empty() ? "" : "; or a list: " + order, rule_name(fallback));
  const nlohmann::json value =
      section.raw("weights", order.empty() ? "text" : "text or list of numbers", doc);
  NeighbourWeights weights;
  weights.rule = fallback;
  if (value.is_null()) {
    section.resolve("weights", rule_name(fallback));
    return weights;
  }
  const std::string allowed =
      fmt::format("\"uniform\"{} \"metropolis\"{}", order.empty() ? " or" : ",",
                  order.empty() ? "" : fmt::format(" or a list of weights ({})", order));
  std::string found = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (found.size() > 40) found.replace(37, std::string::npos, 3, '.');
  if (value.is_string()) {
    const auto name = value.get<std::string>();
    if (name == "uniform") {
      weights.rule = Rule::kUniform;
    } else if (name == "metropolis") {
      weights.rule = Rule::kMetropolis;
    } else {
      section.error("weights", "unknown weights {}{}; allowed: {}", found,
                    suggestion(name, {"uniform", "metropolis"}), allowed);
    }
    return weights;
  }
  if (order.empty() || !value.is_array())
    section.error("weights", "expected {}, found {}", allowed, found);
  for (const nlohmann::json& item : value) {
    const double weight = item.is_number() ? item.get<double>() : -1.0;
    if (!std::isfinite(weight) || weight < 0.0 || weight > 1.0) {
      section.error("weights", "expected weights 0 … 1, found {} as item {} of {}", item.dump(),
                    weights.given.size() + 1, value.size());
    }
    weights.given.push_back(weight);
  }
  weights.rule = Rule::kGiven;
  // A single rank always uses the identity, so that a config can be tried without mpirun.
  if (ranks > 1 && static_cast<int>(weights.given.size()) != numbers) {
    section.error("weights", "expected {} weights for {} ranks ({}), found {}", numbers, ranks,
                  order, weights.given.size());
  }
  const double sum = std::accumulate(weights.given.begin(), weights.given.end(), 0.0);
  if (std::fabs(sum - 1.0) > 1e-12) section.error("weights", "must sum to 1, not {:.15g}", sum);
  return weights;
}

/// The round in which rank i mixes with neighbours_of(i), all at once. Neighbours that coincide, or
/// are the rank itself, count once, with their given weights added.
Round neighbour_round(int ranks, const NeighbourWeights& weights,
                      const NeighboursOf& neighbours_of) {
  const auto n = static_cast<std::size_t>(ranks);
  Round round;
  if (n == 1) return round;
  std::vector<std::vector<int>> neighbours(n), distinct(n);
  for (std::size_t i = 0; i < n; ++i) {
    distinct[i] = neighbours[i] = neighbours_of(static_cast<int>(i));
    std::erase(distinct[i], static_cast<int>(i));
    std::sort(distinct[i].begin(), distinct[i].end());
    distinct[i].erase(std::unique(distinct[i].begin(), distinct[i].end()), distinct[i].end());
  }
  round.rows.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const int self = static_cast<int>(i), degree = static_cast<int>(distinct[i].size());
    std::map<int, double> row;
    switch (weights.rule) {
      case Rule::kUniform:
        row[self] = 1.0 / (degree + 1);
        for (const int j : distinct[i]) row[j] = 1.0 / (degree + 1);
        break;
      case Rule::kMetropolis: {
        std::map<int, int> denominators;
        for (const int j : distinct[i]) {
          const int denominator =
              1 + std::max(degree, static_cast<int>(distinct[static_cast<std::size_t>(j)].size()));
          row[j] = 1.0 / denominator;
          ++denominators[denominator];
        }
        row[self] = metropolis_rest(denominators);
        break;
      }
      case Rule::kGiven:
        row[self] = weights.given[0];
        for (std::size_t k = 0; k < neighbours[i].size(); ++k)
          row[neighbours[i][k]] += weights.given[k + 1];
        break;
    }
    for (const auto& [j, weight] : row) {
      if (weight != 0.0) round.rows[i].emplace_back(j, weight);
    }
  }
  return round;
}

/// That round in every step.
std::unique_ptr<Topology> make_graph(ConfigSection& section, const RankLayout& site,
                                     const std::string& order, int numbers,
                                     const NeighboursOf& neighbours_of) {
  const NeighbourWeights weights =
      read_weights(section, Rule::kUniform, order, site.ranks, numbers);
  return std::make_unique<RoundTable>(site.ranks,
                                      neighbour_round(site.ranks, weights, neighbours_of));
}

}  // namespace

/// Every rank with both neighbours on a ring, every round.
std::unique_ptr<Topology> make_static_ring(ConfigSection& section, const RankLayout& site) {
  return make_graph(section, site, "own, left, right", 3, [n = site.ranks](int i) {
    return std::vector{(i + n - 1) % n, (i + 1) % n};
  });
}

/// r × c ranks, row by row, r the largest divisor of n up to sqrt(n); every rank with its four
/// neighbours, around the edges. A prime number of ranks is one row: a static ring.
std::unique_ptr<Topology> make_torus(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks;
  int rows = 1;
  for (int r = 1; static_cast<std::int64_t>(r) * r <= n; ++r) {
    if (n % r == 0) rows = r;
  }
  return make_graph(
      section, site, "own, up, down, left, right", 5, [rows, columns = n / rows](int i) {
        const int r = i / columns, c = i % columns;
        return std::vector{(r + rows - 1) % rows * columns + c, (r + 1) % rows * columns + c,
                           r * columns + (c + columns - 1) % columns,
                           r * columns + (c + 1) % columns};
      });
}

/// Static exponential graph (Ying et al. 2021, arXiv 2110.13363): rank i receives from i - 2^k for
/// every k < ceil(log2 n), every round.
std::unique_ptr<Topology> make_static_exp(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks, distances = log2_up(n);
  return make_graph(section, site, "own, i - 1, i - 2, i - 4, …", distances + 1, [=](int i) {
    std::vector<int> neighbours;
    for (int k = 0; k < distances; ++k) neighbours.push_back((i + n - (1 << k)) % n);
    return neighbours;
  });
}

/// The hypercube of log2 n dimensions, all of them every round: one-peer-exp's pairs at once.
std::unique_ptr<Topology> make_hypercube(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks, dimensions = log2_up(n);
  const NeighbourWeights weights =
      read_weights(section, Rule::kUniform, "own, i xor 1, i xor 2, i xor 4, …", n, dimensions + 1);
  need_power_of_two("hypercube", site);
  return std::make_unique<RoundTable>(n, neighbour_round(n, weights, [=](int i) {
                                        std::vector<int> neighbours;
                                        for (int b = 0; b < dimensions; ++b)
                                          neighbours.push_back(i ^ (1 << b));
                                        return neighbours;
                                      }));
}

/// Rank 0 with every other rank, every round.
std::unique_ptr<Topology> make_star(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks;
  const NeighbourWeights weights = read_weights(section, Rule::kMetropolis, "", n, 0);
  if (weights.rule == Rule::kUniform && n > 2) {
    section.error("weights",
                  "uniform weights on a star of {} ranks lose the mean (columns do not sum to 1, "
                  "for the centre has more neighbours than the others); \"metropolis\" keeps it",
                  n);
  }
  return std::make_unique<RoundTable>(n, neighbour_round(n, weights, [n](int i) {
                                        if (i > 0) return std::vector{0};
                                        std::vector<int> all(static_cast<std::size_t>(n) - 1);
                                        std::iota(all.begin(), all.end(), 1);
                                        return all;
                                      }));
}

/// One-peer exponential graph in its directed form (Assran et al. 2019, arXiv 1811.10792): in round
/// k rank i receives from i - 2^(k mod ceil(log2 n)) and sends to i + 2^(…).
std::unique_ptr<Topology> make_directed_exp(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks;
  const NeighbourWeights weights = read_weights(section, Rule::kUniform, "own, received", n, 2);
  std::vector<Round> rounds;
  for (int k = 0; k < log2_up(n); ++k) {
    rounds.push_back(
        neighbour_round(n, weights, [=](int i) { return std::vector{(i + n - (1 << k)) % n}; }));
  }
  return std::make_unique<RoundTable>(n, std::move(rounds));
}

}  // namespace starling
