#include "topology/neighbours.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"

namespace starling {
namespace {

using Rule = NeighbourWeights::Rule;

const char* rule_name(Rule rule) { return rule == Rule::kUniform ? "uniform" : "metropolis"; }

/// 1 - Σ of 1/(1 + max(d_i, d_j)), summed by denominators so that a weight like 1/63 comes out to
/// the last bit or two.
double metropolis_rest(const std::map<int, int>& denominators) {
  double rest = 1.0;
  for (const auto& [denominator, count] : denominators)
    rest -= static_cast<double>(count) / denominator;
  return std::max(rest, 0.0);
}

}  // namespace

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

Round neighbour_round(int ranks, const NeighbourWeights& weights,
                      const std::function<std::vector<int>(int)>& neighbours_of) {
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

}  // namespace starling
