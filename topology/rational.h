#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "topology/topology.h"

namespace starling {

/// numerator / denominator in lowest terms, denominator > 0.
struct Rational {
  std::int64_t numerator = 0, denominator = 1;
  friend bool operator==(const Rational&, const Rational&) = default;
};

/// The fraction with a denominator up to 2^20 that `value` (within ±2^20) stands for: the one
/// within 1e-15 of it, if there is one. It is unique (two such fractions are 2^-40 or more apart)
/// and found by continued fractions (it is a convergent, by Legendre's theorem).
std::optional<Rational> nearest_fraction(double value);
/// "1/3", or the shortest decimal where the value is no small fraction.
std::string weight_text(double value);

/// A mixing matrix in rationals: rows of (column, weight) with weight ≠ 0.
using ExactRows = std::vector<std::vector<std::pair<int, Rational>>>;
/// Nothing if a weight is no small fraction. The others' weight in a group, (1 - w)/(m - 1), is
/// computed exactly from w.
std::optional<ExactRows> exact_rows(const Round& round, int ranks);

/// Arithmetic modulo one prime a little below 2^60, in which fractions become integers.
class PrimeField {
 public:
  /// Number `index` of a fixed sequence of distinct primes, all above 2^59.
  explicit PrimeField(int index);
  static constexpr double kBits = 59.0;  ///< each prime contributes at least these to a proof
  std::uint64_t add(std::uint64_t a, std::uint64_t b) const {
    const std::uint64_t sum = a + b;
    return sum >= prime_ ? sum - prime_ : sum;
  }
  std::uint64_t multiply(std::uint64_t a, std::uint64_t b) const;
  std::uint64_t inverse(std::uint64_t a) const;
  std::uint64_t from(const Rational& value) const;
  /// rows · matrix, where matrix is dense, n × n, row-major.
  std::vector<std::uint64_t> product(const ExactRows& rows,
                                     const std::vector<std::uint64_t>& matrix) const;

 private:
  std::uint64_t prime_;
};

/// Whether the fractions sum to exactly 1.
bool sums_to_one(const std::vector<Rational>& terms);
/// A number of bits that a common denominator of all entries fits in.
double denominator_bits(const ExactRows& rows);
/// Whether rounds[count-1] · … · rounds[0] equals J/n exactly. The difference times n and the
/// common denominator D is an integer of at most n·D, so it is zero if it is zero modulo primes
/// whose product is larger: no number ever overflows. Nothing if that would take more than 256
/// primes. `rounds` repeats.
std::optional<bool> product_is_mean(const std::vector<ExactRows>& rounds, std::int64_t count);
/// The first K in [first, last] with a product equal to J/n modulo one prime (a mismatch there is a
/// proof), or -1.
std::int64_t first_mean_candidate(const std::vector<ExactRows>& rounds, std::int64_t first,
                                  std::int64_t last);

}  // namespace starling
