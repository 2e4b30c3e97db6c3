#include "layers/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace starling {

SymmetricEigen symmetric_eigen(std::vector<double> matrix, std::size_t n) {
  std::vector<double> rows(n * n, 0.0);  // row k becomes an eigenvector
  for (std::size_t i = 0; i < n; ++i) rows[i * n + i] = 1.0;
  const auto at = [&](std::size_t i, std::size_t j) -> double& { return matrix[i * n + j]; };
  constexpr int kMostSweeps = 100;  // usually a handful is enough
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double off = 0.0, diagonal = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      diagonal += at(i, i) * at(i, i);
      for (std::size_t j = i + 1; j < n; ++j) off += at(i, j) * at(i, j);
    }
    if (!(off > 1e-32 * diagonal)) break;
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (at(p, q) == 0.0) continue;
        // The rotation that makes element (p, q) zero, by the smaller of two angles.
        const double theta = (at(q, q) - at(p, p)) / (2.0 * at(p, q));
        const double t =
            (theta < 0.0 ? -1.0 : 1.0) / (std::abs(theta) + std::sqrt(theta * theta + 1.0));
        const double c = 1.0 / std::sqrt(t * t + 1.0), s = t * c;
        for (std::size_t k = 0; k < n; ++k) {
          const double a = at(k, p), b = at(k, q);
          at(k, p) = c * a - s * b;
          at(k, q) = s * a + c * b;
        }
        for (std::size_t k = 0; k < n; ++k) {
          const double a = at(p, k), b = at(q, k);
          at(p, k) = c * a - s * b;
          at(q, k) = s * a + c * b;
          const double u = rows[p * n + k], v = rows[q * n + k];
          rows[p * n + k] = c * u - s * v;
          rows[q * n + k] = s * u + c * v;
        }
      }
    }
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return at(a, a) > at(b, b); });
  SymmetricEigen result;
  for (const std::size_t k : order) {
    result.values.push_back(at(k, k));
    const double* row = rows.data() + k * n;
    const double* largest = std::max_element(
        row, row + n, [](double a, double b) { return std::abs(a) < std::abs(b); });
    const double sign = n > 0 && *largest < 0.0 ? -1.0 : 1.0;
    for (std::size_t i = 0; i < n; ++i) result.vectors.push_back(sign * row[i]);
  }
  return result;
}

}  // namespace starling
