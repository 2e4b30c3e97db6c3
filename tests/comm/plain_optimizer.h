#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tests/support/plain_rule.h"

namespace starling::test {

/// One rank's optimizer: a rule, its states and its s.
class PlainOptimizer {
 public:
  PlainOptimizer(const nlohmann::json& config, std::vector<bool> decays)
      : rule(config), decays_(std::move(decays)) {
    const std::size_t count = rule.accumulates() ? 3 : rule.type == "sgd" ? 1 : 2;
    states.assign(count, std::vector<double>(decays_.size(), 0.0));
  }

  /// U(c, g).
  std::vector<double> update(std::vector<double> c, const std::vector<double>& g, double lr) {
    ++s;
    std::array<double*, 3> of_element{};
    for (std::size_t e = 0; e < c.size(); ++e) {
      for (std::size_t k = 0; k < states.size(); ++k) of_element[k] = &states[k][e];
      c[e] = rule.step(c[e], g[e], of_element, decays_[e], lr, s);
    }
    return c;
  }
  double weight_decay(std::size_t element) const {
    return decays_[element] ? rule.weight_decay : 0.0;
  }

  PlainRule rule;
  std::vector<std::vector<double>> states;  ///< [state][element]
  int s = 0;                                ///< updates so far

 private:
  std::vector<bool> decays_;
};

}  // namespace starling::test
