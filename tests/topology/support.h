#pragma once

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "topology/topology.h"

namespace starling {

inline std::unique_ptr<Topology> make(const std::string& type, int ranks, int per_node = 1,
                                      nlohmann::json keys = nlohmann::json::object()) {
  register_builtin_topologies();
  keys["type"] = type;
  ConfigSection section(keys, "test");
  return make_topology(section, {ranks, per_node});
}

/// Nothing where the topology does not take this number of ranks.
inline std::unique_ptr<Topology> try_make(const std::string& type, int ranks, int per_node = 1) {
  try {
    return make(type, ranks, per_node);
  } catch (const Error&) {
    return nullptr;
  }
}

/// The text of the error that making it throws, with its exit code in front: "2 [topology] …".
inline std::string error_of(const std::string& type, int ranks,
                            const nlohmann::json& keys = nlohmann::json::object(),
                            int per_node = 1) {
  try {
    make(type, ranks, per_node, keys);
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
  return "no error";
}

inline std::string error_of_custom(int ranks, const std::string& rounds) {
  return error_of("custom", ranks, {{"rounds", nlohmann::json::parse(rounds)}});
}

/// "[01][23][4567]": groups of two and more by their first rank, for up to ten ranks.
inline std::string drawn(const Round& round, int ranks) {
  std::vector<std::string> at(static_cast<std::size_t>(ranks));
  for (const Group& group : round.groups) {
    std::string& text = at[static_cast<std::size_t>(group.ranks[0])];
    for (const int rank : group.ranks) text += std::to_string(rank);
    text = "[" + text + "]";
  }
  return std::accumulate(at.begin(), at.end(), std::string());
}

/// A plain rational number for the tests' own products: overflow is refused, not wrapped.
struct Fraction {
  __extension__ using Integer = __int128;
  Integer a = 0, b = 1;
  Fraction() = default;
  Fraction(Integer numerator, Integer denominator) : a(numerator), b(denominator) { reduce(); }
  void reduce() {
    Integer x = a < 0 ? -a : a, y = b;
    while (y != 0) {
      const Integer r = x % y;
      x = y;
      y = r;
    }
    if (x > 1) a /= x, b /= x;
  }
  static Integer times(Integer x, Integer y) {
    Integer result;
    if (__builtin_mul_overflow(x, y, &result)) throw std::overflow_error("Fraction");
    return result;
  }
  friend Fraction operator*(const Fraction& x, const Fraction& y) {
    return {times(x.a, y.a), times(x.b, y.b)};
  }
  friend Fraction operator+(const Fraction& x, const Fraction& y) {
    Integer sum;
    if (__builtin_add_overflow(times(x.a, y.b), times(y.a, x.b), &sum))
      throw std::overflow_error("Fraction");
    return {sum, times(x.b, y.b)};
  }
  friend bool operator==(const Fraction& x, const Fraction& y) { return x.a == y.a && x.b == y.b; }
};

using FractionMatrix = std::vector<std::vector<Fraction>>;

/// A weight as the fraction with the smallest denominator ≤ 4096 that is the same double up to
/// 1e-15; by trying them all.
inline Fraction fraction_of(double weight) {
  for (int q = 1; q <= 4096; ++q) {
    const double p = std::round(weight * q);
    if (std::fabs(weight - p / q) <= 1e-15) return {static_cast<Fraction::Integer>(p), q};
  }
  throw std::domain_error("no small fraction");
}

inline FractionMatrix matrix_of(const Round& round, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  FractionMatrix result(n, std::vector<Fraction>(n));
  for (int i = 0; i < ranks; ++i) {
    for (const auto& [j, weight] : Topology::row(round, i))
      result[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] = fraction_of(weight);
  }
  return result;
}

inline FractionMatrix product(const FractionMatrix& x, const FractionMatrix& y) {
  const std::size_t n = x.size();
  FractionMatrix result(n, std::vector<Fraction>(n));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      if (x[i][j].a == 0) continue;
      for (std::size_t k = 0; k < n; ++k) {
        if (y[j][k].a != 0) result[i][k] = result[i][k] + x[i][j] * y[j][k];
      }
    }
  }
  return result;
}

inline bool doubly_stochastic(const FractionMatrix& x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    Fraction row, column;
    for (std::size_t j = 0; j < x.size(); ++j) {
      if (x[i][j].a < 0) return false;
      row = row + x[i][j];
      column = column + x[j][i];
    }
    if (!(row == Fraction(1, 1)) || !(column == Fraction(1, 1))) return false;
  }
  return true;
}

/// The smallest K ≤ limit with W(K-1)…W(0) = J/n, multiplied out; -1 if none.
inline int rounds_to_mean(const Topology& topology, int limit) {
  const int n = topology.ranks();
  FractionMatrix total = matrix_of(Round{}, n);
  for (int k = 0; k <= limit; ++k) {
    bool mean = true;
    for (const auto& row : total) {
      for (const Fraction& entry : row) mean = mean && entry == Fraction(1, n);
    }
    if (mean) return k;
    if (k < limit) total = product(matrix_of(topology.round(k), n), total);
  }
  return -1;
}

}  // namespace starling
