#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "topology/topology.h"

// Exact arithmetic for proofs about mixing matrices, e.g. that after K rounds every rank has
// exactly the mean. Weights are recovered as fractions of integers; products of matrices are then
// computed modulo primes. Two matrices are equal if they are equal modulo so many primes that their
// product exceeds any possible difference of the numerators, so big integers are not needed.

namespace starling {

/// numerator / denominator in lowest terms, denominator > 0.
struct Rational {
  std::int64_t numerator = 0, denominator = 1;
  friend bool operator==(const Rational&, const Rational&) = default;
};

/// The fraction with a denominator up to 2^20 that is within 1e-15 of `value`, for |value| up to
/// 2^20; nothing if there is none. It is unique, since two such fractions differ by at least 2^-40,
/// and by Legendre's theorem a convergent of the value's continued fraction.
std::optional<Rational> nearest_fraction(double value);
/// "1/3", or the shortest decimal if the denominator exceeds 9999.
std::string weight_text(double value);

/// A mixing matrix with exact weights: for each row its nonzero entries as (column, weight).
using ExactRows = std::vector<std::vector<std::pair<int, Rational>>>;
/// The round's matrix; nothing if nearest_fraction() fails for a weight. In a group of m ranks with
/// self-weight w, the weight of the others is exactly (1 - w) / (m - 1).
std::optional<ExactRows> exact_rows(const Round& round, int ranks);

/// Integers modulo a prime between 2^59 and 2^60.
class PrimeField {
 public:
  /// `index` numbers a fixed sequence of distinct primes.
  explicit PrimeField(int index);
  static constexpr double kBits = 59.0;  ///< log2 of each prime is more
  std::uint64_t add(std::uint64_t a, std::uint64_t b) const {
    const std::uint64_t sum = a + b;
    return sum >= prime_ ? sum - prime_ : sum;
  }
  std::uint64_t multiply(std::uint64_t a, std::uint64_t b) const;
  std::uint64_t inverse(std::uint64_t a) const;
  std::uint64_t from(const Rational& value) const;
  /// rows · matrix, where `matrix` is dense, n × n, row-major.
  std::vector<std::uint64_t> product(const ExactRows& rows,
                                     const std::vector<std::uint64_t>& matrix) const;

 private:
  std::uint64_t prime_;
};

bool sums_to_one(const std::vector<Rational>& terms);
/// An upper bound on log2 of the least common denominator of all entries.
double denominator_bits(const ExactRows& rows);
/// Whether rounds[count - 1] · … · rounds[0] is exactly J/n, all entries 1/n; `rounds` repeats
/// cyclically. Nothing if the proof would take more than 256 primes.
std::optional<bool> product_is_mean(const std::vector<ExactRows>& rounds, std::int64_t count);
/// The first count in [first, last] whose product equals J/n modulo one prime, or -1. All smaller
/// counts are thereby disproved; the one returned still needs product_is_mean().
std::int64_t first_mean_candidate(const std::vector<ExactRows>& rounds, std::int64_t first,
                                  std::int64_t last);

}  // namespace starling
