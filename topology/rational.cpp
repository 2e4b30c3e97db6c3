#include "topology/rational.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "core/error.h"

namespace starling {
namespace {

constexpr std::int64_t kMaxDenominator = 1 << 20;
constexpr double kRoundingError = 1e-15;
constexpr int kMaxPrimes = 256;  // limits the effort of a proof

__extension__ using Wide = unsigned __int128;

std::uint64_t multiply_modulo(std::uint64_t a, std::uint64_t b, std::uint64_t m) {
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b % m);
}

std::uint64_t power_modulo(std::uint64_t base, std::uint64_t exponent, std::uint64_t m) {
  std::uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = multiply_modulo(result, base, m);
    base = multiply_modulo(base, base, m);
  }
  return result;
}

/// Miller-Rabin with bases that make it exact for all 64-bit integers (Sorenson and Webster 2015).
bool is_prime(std::uint64_t n) {
  constexpr std::array<std::uint64_t, 12> kBases{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
  for (const std::uint64_t p : kBases) {
    if (n % p == 0) return n == p;
  }
  std::uint64_t odd = n - 1;  // n - 1 = odd · 2^twos
  int twos = 0;
  for (; odd % 2 == 0; odd /= 2) ++twos;
  for (const std::uint64_t base : kBases) {
    std::uint64_t x = power_modulo(base, odd, n);
    bool passes = x == 1 || x == n - 1;
    for (int i = 1; i < twos && !passes; ++i) {
      x = multiply_modulo(x, x, n);
      passes = x == n - 1;
    }
    if (!passes) return false;
  }
  return true;
}

/// The primes below 2^60 in descending order.
std::uint64_t large_prime(int index) {
  static thread_local std::vector<std::uint64_t> primes;
  std::uint64_t candidate = primes.empty() ? (std::uint64_t{1} << 60) + 1 : primes.back();
  while (static_cast<int>(primes.size()) <= index) {
    do candidate -= 2;
    while (!is_prime(candidate));
    primes.push_back(candidate);
  }
  return primes[static_cast<std::size_t>(index)];
}

std::vector<std::uint64_t> identity(std::size_t n) {
  std::vector<std::uint64_t> result(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) result[i * n + i] = 1;
  return result;
}

/// Whether all entries of the n × n matrix are 1/n.
bool is_mean(const PrimeField& field, const std::vector<std::uint64_t>& matrix, std::size_t n) {
  const std::uint64_t mean = field.from({1, static_cast<std::int64_t>(n)});
  return std::all_of(matrix.begin(), matrix.end(),
                     [&](std::uint64_t entry) { return entry == mean; });
}

/// Whether `holds` in as many prime fields as it takes to prove an equation of integers whose sides
/// differ by less than 2^bits.
template <class Predicate>
bool holds_exactly(double bits, Predicate holds) {
  for (int index = 0; index * PrimeField::kBits < bits; ++index) {
    if (!holds(PrimeField(index))) return false;
  }
  return true;
}

const ExactRows& round_at(const std::vector<ExactRows>& rounds, std::int64_t k) {
  return rounds[static_cast<std::size_t>(k) % rounds.size()];
}

}  // namespace

std::optional<Rational> nearest_fraction(double value) {
  if (!std::isfinite(value) || std::fabs(value) > static_cast<double>(kMaxDenominator))
    return std::nullopt;
  // Successive convergents p/q of the continued fraction of |value|; p and q stay below 2^42.
  const double magnitude = std::fabs(value);
  std::int64_t p = 1, q = 0, last_p = 0, last_q = 1;
  double rest = magnitude;
  for (int step = 0; step < 64; ++step) {
    const double whole = std::floor(rest);
    if (whole > static_cast<double>(kMaxDenominator)) break;
    const auto digit = static_cast<std::int64_t>(whole);
    const std::int64_t next_p = digit * p + last_p, next_q = digit * q + last_q;
    if (next_q > kMaxDenominator) break;
    last_p = p, last_q = q, p = next_p, q = next_q;
    const auto divisor = static_cast<double>(q);
    const double error = std::fma(divisor, magnitude, -static_cast<double>(p));  // q·|value| - p
    if (std::fabs(error) <= kRoundingError * divisor) return Rational{value < 0 ? -p : p, q};
    if (rest == whole) break;
    rest = 1.0 / (rest - whole);
  }
  return std::nullopt;
}

std::string weight_text(double value) {
  const std::optional<Rational> fraction = nearest_fraction(value);
  if (!fraction || fraction->denominator > 9999) return fmt::format("{}", value);
  if (fraction->denominator == 1) return fmt::format("{}", fraction->numerator);
  return fmt::format("{}/{}", fraction->numerator, fraction->denominator);
}

std::optional<ExactRows> exact_rows(const Round& round, int ranks) {
  if (round.ranks_per_node > 1) return exact_rows(over_ranks(round), ranks);
  ExactRows result(static_cast<std::size_t>(ranks));
  if (!round.rows.empty()) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      for (const auto& [column, weight] : round.rows[i]) {
        const std::optional<Rational> exact = nearest_fraction(weight);
        if (!exact) return std::nullopt;
        if (exact->numerator != 0) result[i].emplace_back(column, *exact);
      }
    }
    return result;
  }
  for (const Group& group : round.groups) {
    if (group.ranks.size() < 2) continue;
    const std::optional<Rational> self = nearest_fraction(group.self_weight);
    if (!self) return std::nullopt;
    Rational other{self->denominator - self->numerator,
                   self->denominator * static_cast<std::int64_t>(group.ranks.size() - 1)};
    const std::int64_t divisor = std::gcd(other.numerator, other.denominator);
    other.numerator /= divisor;
    other.denominator /= divisor;
    for (const int i : group.ranks) {
      for (const int j : group.ranks) {
        const Rational& weight = i == j ? *self : other;
        if (weight.numerator != 0) result[static_cast<std::size_t>(i)].emplace_back(j, weight);
      }
    }
  }
  // Ranks in no group keep their values. (A row of a group is never empty: w and (1 - w) / (m - 1)
  // are not both 0.)
  for (int i = 0; i < ranks; ++i) {
    if (result[static_cast<std::size_t>(i)].empty())
      result[static_cast<std::size_t>(i)].emplace_back(i, Rational{1, 1});
  }
  return result;
}

PrimeField::PrimeField(int index) : prime_(large_prime(index)) {}

std::uint64_t PrimeField::multiply(std::uint64_t a, std::uint64_t b) const {
  return multiply_modulo(a, b, prime_);
}

std::uint64_t PrimeField::inverse(std::uint64_t a) const {
  return power_modulo(a, prime_ - 2, prime_);
}

std::uint64_t PrimeField::from(const Rational& value) const {
  // Invertible: denominators are smaller than the prime.
  const std::uint64_t numerator =
      value.numerator >= 0 ? static_cast<std::uint64_t>(value.numerator) % prime_
                           : prime_ - static_cast<std::uint64_t>(-value.numerator) % prime_;
  return multiply(numerator, inverse(static_cast<std::uint64_t>(value.denominator)));
}

std::vector<std::uint64_t> PrimeField::product(const ExactRows& rows,
                                               const std::vector<std::uint64_t>& matrix) const {
  const std::size_t n = rows.size();
  std::vector<std::uint64_t> result(n * n);
  std::vector<Wide> sums(n);
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint64_t> residues;  // of weights
  for (std::size_t i = 0; i < n; ++i) {
    std::fill(sums.begin(), sums.end(), 0);
    int terms = 0;
    for (const auto& [column, weight] : rows[i]) {
      const auto [it, added] = residues.try_emplace({weight.numerator, weight.denominator}, 0);
      if (added) it->second = from(weight);
      const std::uint64_t* row = &matrix[static_cast<std::size_t>(column) * n];
      for (std::size_t k = 0; k < n; ++k) sums[k] += static_cast<Wide>(it->second) * row[k];
      if (++terms % 128 == 0) {  // 128 bits hold 2^8 products of two 60-bit residues
        for (Wide& sum : sums) sum %= prime_;
      }
    }
    for (std::size_t k = 0; k < n; ++k)
      result[i * n + k] = static_cast<std::uint64_t>(sums[k] % prime_);
  }
  return result;
}

bool sums_to_one(const std::vector<Rational>& terms) {
  std::map<std::int64_t, std::int64_t> numerators;  // summed, by denominator
  double bits = 2.0, largest = 0.0;
  for (const auto& [numerator, denominator] : terms) {
    const auto [it, added] = numerators.try_emplace(denominator, 0);
    if (added) bits += std::log2(static_cast<double>(denominator));
    require(!__builtin_add_overflow(it->second, numerator, &it->second), "topology",
            "a sum of weights overflowed");
    largest = std::max(
        largest, std::fabs(static_cast<double>(numerator) / static_cast<double>(denominator)));
  }
  // (sum - 1) · common denominator is an integer of at most (terms · largest + 1) · that.
  bits += std::log2(static_cast<double>(terms.size()) * largest + 1.0);
  return holds_exactly(bits, [&](const PrimeField& field) {
    std::uint64_t sum = 0;
    for (const auto& [denominator, numerator] : numerators)
      sum = field.add(sum, field.from({numerator, denominator}));
    return sum == 1;
  });
}

double denominator_bits(const ExactRows& rows) {
  std::set<std::int64_t> denominators;
  double bits = 0.0;
  for (const auto& row : rows) {
    for (const auto& [column, weight] : row) {
      if (denominators.insert(weight.denominator).second)
        bits += std::log2(static_cast<double>(weight.denominator));
    }
  }
  return bits;
}

std::optional<bool> product_is_mean(const std::vector<ExactRows>& rounds, std::int64_t count) {
  const std::size_t n = rounds.at(0).size();
  // (product - J/n) · n · common denominator D has integer entries of at most n·D.
  double bits = std::log2(static_cast<double>(n)) + 2.0;
  for (std::int64_t k = 0; k < count; ++k) bits += denominator_bits(round_at(rounds, k));
  if (bits > kMaxPrimes * PrimeField::kBits) return std::nullopt;
  return holds_exactly(bits, [&](const PrimeField& field) {
    std::vector<std::uint64_t> matrix = identity(n);
    for (std::int64_t k = 0; k < count; ++k) matrix = field.product(round_at(rounds, k), matrix);
    return is_mean(field, matrix, n);
  });
}

std::int64_t first_mean_candidate(const std::vector<ExactRows>& rounds, std::int64_t first,
                                  std::int64_t last) {
  const std::size_t n = rounds.at(0).size();
  const PrimeField field(0);
  std::vector<std::uint64_t> matrix = identity(n);
  for (std::int64_t count = 0; count <= last; ++count) {
    if (count >= first && is_mean(field, matrix, n)) return count;
    if (count < last) matrix = field.product(round_at(rounds, count), matrix);
  }
  return -1;
}

}  // namespace starling
