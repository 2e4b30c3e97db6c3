#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "tests/kernels/layer_reference.h"
#include "tests/support/plain_rule.h"

namespace starling::test {

/// One rank's optimizer: a rule, its states and its s.
class PlainOptimizer {
 public:
  /// `layers`: where the parameters lie, for Muon, which needs their shapes.
  PlainOptimizer(const nlohmann::json& config, std::vector<bool> decays,
                 std::vector<LayerExtent> layers = {})
      : decays_(std::move(decays)), layers_(std::move(layers)) {
    if (config.value("type", "") == "muon") {
      muon_ = LayerReference{.type = "muon",
                             .momentum = config.value("momentum", 0.95),
                             .eps = config.value("eps", 1e-8),
                             .weight_decay = config.value("weight_decay", 0.1),
                             .nesterov = config.value("nesterov", true)};
      require(!layers_.empty(), "test", "muon on a problem without shapes");
    } else {
      rule = PlainRule(config);
    }
    const std::size_t count = rule.accumulates() ? 3 : rule.type == "sgd" && !muon_ ? 1 : 2;
    states.assign(count, std::vector<double>(decays_.size(), 0.0));
  }

  /// U(c, g).
  std::vector<double> update(std::vector<double> c, const std::vector<double>& g, double lr) {
    ++s;
    if (muon_) {
      for (const LayerExtent& layer : layers_) update_layer(layer, c, g, lr);
      return c;
    }
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
  void update_layer(const LayerExtent& layer, std::vector<double>& c, const std::vector<double>& g,
                    double lr) {
    const auto part = [&](const std::vector<double>& v) {
      return std::vector<double>(v.begin() + layer.first, v.begin() + layer.first + layer.elements);
    };
    std::vector<double> p = part(c), first = part(states[0]), second = part(states[1]);
    muon_->step(p, part(g), first, second, layer, lr, s);
    std::copy(p.begin(), p.end(), c.begin() + layer.first);
    std::copy(first.begin(), first.end(), states[0].begin() + layer.first);
    std::copy(second.begin(), second.end(), states[1].begin() + layer.first);
  }

  std::optional<LayerReference> muon_;
  std::vector<bool> decays_;
  std::vector<LayerExtent> layers_;
};

}  // namespace starling::test
