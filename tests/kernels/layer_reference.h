#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/operations/updates.h"
#include "kernels/optimizer.h"
#include "tests/kernels/optimizer_reference.h"

namespace starling::test {

/// Rules that measure layers, in double, layer by layer.
struct LayerReference {
  std::string type;
  double momentum = 0.9, trust = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0;
  bool nesterov = false, adapt_all = false, like_adamw = true;
  double beta2_decay = -0.8, eps2 = 1e-3, threshold = 1;

  nlohmann::json config() const {
    if (type == "adafactor")
      return {{"beta2_decay", beta2_decay},
              {"eps", {eps, eps2}},
              {"d", threshold},
              {"weight_decay", weight_decay}};
    if (type == "muon") {
      return {{"weight_decay", weight_decay},
              {"eps", eps},
              {"betas", {beta1, beta2}},
              {"momentum", momentum},
              {"nesterov", nesterov},
              {"adjust_lr", like_adamw ? "match_rms_adamw" : "original"}};
    }
    nlohmann::json result = {
        {"weight_decay", weight_decay}, {"eps", eps}, {"adapt", adapt_all ? "all" : "weights"}};
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

  /// a·b of row-major matrices [m, k] and [k, n].
  static std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b,
                                     std::size_t m, std::size_t k) {
    const std::size_t n = b.size() / k;
    std::vector<double> c(m * n);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t l = 0; l < k; ++l) {
        for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
      }
    }
    return c;
  }
  static std::vector<double> transposed(const std::vector<double>& a, std::size_t rows) {
    const std::size_t columns = a.size() / rows;
    std::vector<double> b(a.size());
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) b[j * rows + i] = a[i * columns + j];
    }
    return b;
  }
  /// Five Newton-Schulz iterations, always on the wide one of X and its transpose.
  static std::vector<double> orthogonal(std::vector<double> x, std::size_t rows) {
    const std::size_t columns = x.size() / rows;
    if (rows > columns) return transposed(orthogonal(transposed(x, rows), columns), columns);
    const double length = std::max(norm(x), 1e-7);
    for (double& value : x) value /= length;
    for (int i = 0; i < 5; ++i) {
      const std::vector<double> square = product(x, transposed(x, rows), rows, columns);
      std::vector<double> both = product(square, square, rows, rows);
      for (std::size_t k = 0; k < both.size(); ++k) both[k] = -4.775 * square[k] + 2.0315 * both[k];
      const std::vector<double> moved = product(both, x, rows, rows);
      for (std::size_t k = 0; k < x.size(); ++k) x[k] = 3.4445 * x[k] + moved[k];
    }
    return x;
  }

  void muon_step(std::vector<double>& p, const std::vector<double>& g, std::vector<double>& first,
                 std::vector<double>& second, const LayerExtent& layer, double wd, double lr,
                 std::int64_t s) const {
    std::vector<double> direction(p.size());
    double factor = 1;
    if (layer.weight) {
      for (std::size_t i = 0; i < p.size(); ++i) {
        first[i] = momentum * first[i] + (1 - momentum) * g[i];
        direction[i] = nesterov ? (1 - momentum) * g[i] + momentum * first[i] : first[i];
      }
      direction = orthogonal(direction, static_cast<std::size_t>(layer.rows));
      const auto rows = static_cast<double>(layer.rows),
                 columns = static_cast<double>(layer.columns);
      factor = like_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                          : std::sqrt(std::max(1.0, rows / columns));
    } else {
      for (std::size_t i = 0; i < p.size(); ++i) {
        first[i] = beta1 * first[i] + (1 - beta1) * g[i];
        second[i] = beta2 * second[i] + (1 - beta2) * g[i] * g[i];
        direction[i] = first[i] / (1 - std::pow(beta1, s)) /
                       (std::sqrt(second[i] / (1 - std::pow(beta2, s))) + eps);
      }
    }
    for (std::size_t i = 0; i < p.size(); ++i)
      p[i] = p[i] * (1 - lr * wd) - lr * factor * direction[i];
  }

  /// The averages of a matrix's rows are in `first`, those of its columns in `second`; of all else
  /// the squares' are in `first`.
  void adafactor_step(std::vector<double>& p, const std::vector<double>& g,
                      std::vector<double>& first, std::vector<double>& second,
                      const LayerExtent& layer, double wd, double lr, std::int64_t s) const {
    const double share = std::pow(static_cast<double>(s), beta2_decay),
                 n = static_cast<double>(p.size());
    const auto average = [&](double& old, double now) { old = (1 - share) * old + share * now; };
    std::vector<double> update(p.size());
    if (layer.weight) {
      const auto rows = static_cast<std::size_t>(layer.rows),
                 columns = static_cast<std::size_t>(layer.columns);
      std::vector<double> of_rows(rows), of_columns(columns);
      for (std::size_t i = 0; i < p.size(); ++i) {
        of_rows[i / columns] += g[i] * g[i] / static_cast<double>(columns);
        of_columns[i % columns] += g[i] * g[i] / static_cast<double>(rows);
      }
      double mean = 0;
      for (std::size_t i = 0; i < rows; ++i) {
        average(first[i], of_rows[i]);
        mean += first[i] / static_cast<double>(rows);
      }
      for (std::size_t j = 0; j < columns; ++j) average(second[j], of_columns[j]);
      for (std::size_t i = 0; i < p.size(); ++i)
        update[i] = first[i / columns] * second[i % columns] / std::max(mean, eps);
    } else {
      for (std::size_t i = 0; i < p.size(); ++i) {
        average(first[i], g[i] * g[i]);
        update[i] = first[i];
      }
    }
    for (std::size_t i = 0; i < p.size(); ++i)
      update[i] = g[i] / std::sqrt(std::max(update[i], eps * eps));
    const double alpha = std::max(eps2, norm(p) / std::sqrt(n)) *
                         std::min(lr, 1 / std::sqrt(static_cast<double>(s)));
    const double shortened = std::max(1.0, norm(update) / std::sqrt(n) / threshold);
    for (std::size_t i = 0; i < p.size(); ++i)
      p[i] = p[i] * (1 - lr * wd) - alpha / shortened * update[i];
  }

  /// One step of one layer. `first`: momentum or m, `second`: v.
  void step(std::vector<double>& p, const std::vector<double>& g, std::vector<double>& first,
            std::vector<double>& second, const LayerExtent& layer, double lr,
            std::int64_t s) const {
    const bool weight = layer.weight;
    const double wd = weight ? weight_decay : 0;
    std::vector<double> direction(p.size());
    if (type == "adafactor") return adafactor_step(p, g, first, second, layer, wd, lr, s);
    if (type == "muon") return muon_step(p, g, first, second, layer, wd, lr, s);
    if (type == "lars") {
      double factor = 1;
      if ((weight || adapt_all) && norm(p) > 0 && norm(g) > 0)
        factor = trust * norm(p) / (norm(g) + wd * norm(p) + eps);
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double d = factor * (g[i] + wd * p[i]);
        first[i] = momentum * first[i] + d;
        direction[i] = nesterov ? d + momentum * first[i] : first[i];
      }
    } else {
      for (std::size_t i = 0; i < p.size(); ++i) {
        first[i] = beta1 * first[i] + (1 - beta1) * g[i];
        second[i] = beta2 * second[i] + (1 - beta2) * g[i] * g[i];
        const double m = first[i] / (1 - std::pow(beta1, s)),
                     v = second[i] / (1 - std::pow(beta2, s));
        direction[i] = m / (std::sqrt(v) + eps) + wd * p[i];
      }
      double factor = 1;
      if ((weight || adapt_all) && norm(p) > 0 && norm(direction) > 0)
        factor = norm(p) / norm(direction);
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
      {.type = "adafactor"},
      {.type = "adafactor",
       .eps = 0.8,
       .weight_decay = 0.1,
       .beta2_decay = -0.5,
       .eps2 = 2,
       .threshold = 1.02},
      {.type = "muon", .weight_decay = 0.1, .nesterov = true},
      {.type = "muon",
       .momentum = 0.6,
       .beta1 = 0.8,
       .beta2 = 0.99,
       .eps = 1e-3,
       .like_adamw = false},
  };
}

/// Layers of one block, of a piece and a little, of several pieces, and a short one at the end;
/// every other one is a weight, and the fourth has more rows than columns.
inline std::vector<LayerExtent> layer_extents() {
  std::vector<LayerExtent> result;
  std::int64_t first = 0;
  for (const std::int64_t elements :
       {std::int64_t{32}, kLayerPiece + 96, 2 * kLayerPiece + 1024 + 32, std::int64_t{2048},
        std::int64_t{64}}) {
    result.push_back({.first = first,
                      .elements = elements,
                      .weight = result.size() % 2 == 1 || result.size() == 2});
    LayerExtent& layer = result.back();
    if (layer.weight) layer.columns = elements / (layer.rows = elements == 2048 ? 64 : 32);
    first += elements;
  }
  return result;
}
/// Matrices whose numbers, rows and columns fill no blocks, short vectors side by side, and sides
/// of one.
inline std::vector<LayerExtent> odd_extents() {
  std::vector<LayerExtent> result;
  std::int64_t first = 0;
  const auto add = [&](std::int64_t rows, std::int64_t columns) {
    const std::int64_t numbers = rows * (columns > 0 ? columns : 1),
                       elements = (numbers + 31) / 32 * 32;
    result.push_back(
        {first, elements, columns > 0, columns > 0 ? rows : 0, columns, elements - numbers});
    first += elements;
  };
  add(5, 7), add(3, 0), add(40, 0), add(33, 147), add(1, 64), add(64, 1), add(7, 0), add(2, 2000),
      add(700, 3), add(1, 0);
  return result;
}
inline std::int64_t elements_of(const std::vector<LayerExtent>& layers) {
  return layers.back().first + layers.back().elements;
}

}  // namespace starling::test
