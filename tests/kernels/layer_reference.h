#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/operations.h"
#include "kernels/optimizer.h"
#include "tests/kernels/optimizer_reference.h"

namespace starling::test {

/// Rules that measure layers, in double, layer by layer.
struct LayerReference {
  std::string type;
  double momentum = 0.9, trust = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0;
  bool nesterov = false, adapt_all = false;

  nlohmann::json config() const {
    nlohmann::json result = {{"weight_decay", weight_decay}, {"eps", eps}, {"adapt", adapt_all ? "all" : "weights"}};
    if (type == "lars") {
      result.update({{"momentum", momentum}, {"trust", trust}, {"nesterov", nesterov}});
    } else {
      result["betas"] = {beta1, beta2};
    }
    return result;
  }

  static double norm(const std::vector<double>& x) {
    double sum = 0;
    for (const double value : x) sum += value * value;
    return std::sqrt(sum);
  }

  /// One step of one layer. `first`: momentum or m, `second`: v.
  void step(std::vector<double>& p, const std::vector<double>& g, std::vector<double>& first, std::vector<double>& second, bool weight,
            bool decays, double lr, std::int64_t s) const {
    const double wd = decays ? weight_decay : 0;
    std::vector<double> direction(p.size());
    if (type == "lars") {
      double factor = 1;
      if ((weight || adapt_all) && norm(p) > 0 && norm(g) > 0) factor = trust * norm(p) / (norm(g) + wd * norm(p) + eps);
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double d = factor * (g[i] + wd * p[i]);
        first[i] = momentum * first[i] + d;
        direction[i] = nesterov ? d + momentum * first[i] : first[i];
      }
    } else {
      for (std::size_t i = 0; i < p.size(); ++i) {
        first[i] = beta1 * first[i] + (1 - beta1) * g[i];
        second[i] = beta2 * second[i] + (1 - beta2) * g[i] * g[i];
        const double m = first[i] / (1 - std::pow(beta1, s)), v = second[i] / (1 - std::pow(beta2, s));
        direction[i] = m / (std::sqrt(v) + eps) + wd * p[i];
      }
      double factor = 1;
      if ((weight || adapt_all) && norm(p) > 0 && norm(direction) > 0) factor = norm(p) / norm(direction);
      for (double& value : direction) value *= factor;
    }
    for (std::size_t i = 0; i < p.size(); ++i) p[i] -= lr * direction[i];
  }
};

/// One of each kind, with decay.
inline std::vector<LayerReference> layer_rules() {
  return {
      {.type = "lars", .momentum = 0, .weight_decay = 0.1},
      {.type = "lars", .trust = 0.02, .weight_decay = 0.1, .adapt_all = true},
      {.type = "lars", .momentum = 0.8, .eps = 1e-3, .weight_decay = 0.05, .nesterov = true},
      {.type = "lamb", .weight_decay = 0.1},
      {.type = "lamb", .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-3, .adapt_all = true},
  };
}

/// Layers of one block, of a piece and a little, of several pieces, and a short one at the end; every other one is a weight.
inline std::vector<LayerExtent> layer_extents() {
  std::vector<LayerExtent> result;
  std::int64_t first = 0;
  for (const std::int64_t elements :
       {std::int64_t{32}, kLayerPiece + 96, 2 * kLayerPiece + 1024 + 32, std::int64_t{2048}, std::int64_t{64}}) {
    result.push_back({first, elements, result.size() % 2 == 1 || result.size() == 2});
    first += elements;
  }
  return result;
}
inline std::int64_t elements_of(const std::vector<LayerExtent>& layers) { return layers.back().first + layers.back().elements; }

}  // namespace starling::test
