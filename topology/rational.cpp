#include "topology/rational.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "core/error.h"

namespace starling {
namespace {

constexpr std::int64_t kMaxDenominator = 1 << 20;
constexpr double kRoundingError = 1e-15;  // relative

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

/// Miller-Rabin; these bases decide it for every 64-bit number (Sorenson and Webster 2015).
bool is_prime(std::uint64_t n) {
  constexpr std::array<std::uint64_t, 12> kBases{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
  for (const std::uint64_t p : kBases) {
    if (n % p == 0) return n == p;
  }
  std::uint64_t odd = n - 1;
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

std::uint64_t prime_number(int index) {
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

bool is_mean(const PrimeField& field, const std::vector<std::uint64_t>& matrix, std::size_t n) {
  const std::uint64_t mean = field.from({1, static_cast<std::int64_t>(n)});
  for (const std::uint64_t entry : matrix) {
    if (entry != mean) return false;
  }
  return true;
}

}  // namespace

std::optional<Rational> nearest_fraction(double value) {
  if (!std::isfinite(value) || std::fabs(value) > static_cast<double>(kMaxDenominator))
    return std::nullopt;
  // Convergents p/q of the continued fraction: p and q stay below 2^42.
  std::int64_t p = 1, q = 0, p_before = 0, q_before = 1;
  double rest = std::fabs(value);
  for (int step = 0; step < 64; ++step) {
    const double whole = std::floor(rest);
    if (whole > static_cast<double>(kMaxDenominator)) break;
    const auto a = static_cast<std::int64_t>(whole);
    const std::int64_t p_next = a * p + p_before, q_next = a * q + q_before;
    if (q_next > kMaxDenominator) break;
    p_before = p, q_before = q, p = p_next, q = q_next;
    const auto divisor = static_cast<double>(q);
    if (std::fabs(std::fma(divisor, std::fabs(value), -static_cast<double>(p))) <=
        kRoundingError * divisor) {
      return Rational{value < 0 ? -p : p, q};
    }
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
  // Ranks in no group. (Every row of a group has an entry, for w and (1 - w)/(m - 1) are not both
  // 0.)
  for (int i = 0; i < ranks; ++i) {
    if (result[static_cast<std::size_t>(i)].empty())
      result[static_cast<std::size_t>(i)].emplace_back(i, Rational{1, 1});
  }
  return result;
}

PrimeField::PrimeField(int index) : prime_(prime_number(index)) {}

std::uint64_t PrimeField::multiply(std::uint64_t a, std::uint64_t b) const {
  return multiply_modulo(a, b, prime_);
}

std::uint64_t PrimeField::inverse(std::uint64_t a) const {
  return power_modulo(a, prime_ - 2, prime_);
}

std::uint64_t PrimeField::from(const Rational& value) const {
  // Denominators here are far below the prime, so never divisible by it.
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
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint64_t> known;
  for (std::size_t i = 0; i < n; ++i) {
    std::fill(sums.begin(), sums.end(), 0);
    int terms = 0;
    for (const auto& [column, weight] : rows[i]) {
      const auto [it, added] = known.try_emplace({weight.numerator, weight.denominator}, 0);
      if (added) it->second = from(weight);
      const std::uint64_t* row = &matrix[static_cast<std::size_t>(column) * n];
      for (std::size_t k = 0; k < n; ++k) sums[k] += static_cast<Wide>(it->second) * row[k];
      if (++terms % 128 == 0) {  // 2^8 products of 2^120 are what fits
        for (Wide& sum : sums) sum %= prime_;
      }
    }
    for (std::size_t k = 0; k < n; ++k)
      result[i * n + k] = static_cast<std::uint64_t>(sums[k] % prime_);
  }
  return result;
}

bool sums_to_one(const std::vector<Rational>& terms) {
  std::map<std::int64_t, std::int64_t> by_denominator;
  double bits = 2.0, largest = 0.0;
  for (const Rational& term : terms) {
    const auto [it, added] = by_denominator.try_emplace(term.denominator, 0);
    if (added) bits += std::log2(static_cast<double>(term.denominator));
    require(!__builtin_add_overflow(it->second, term.numerator, &it->second), "topology",
            "a sum of weights overflowed");
    largest = std::max(largest, std::fabs(static_cast<double>(term.numerator) /
                                          static_cast<double>(term.denominator)));
  }
  // (sum - 1) times the common denominator is an integer of at most (terms · largest + 1) times
  // that denominator.
  bits += std::log2(static_cast<double>(terms.size()) * largest + 1.0);
  for (int index = 0; index * PrimeField::kBits < bits; ++index) {
    const PrimeField field(index);
    std::uint64_t sum = 0;
    for (const auto& [denominator, numerator] : by_denominator)
      sum = field.add(sum, field.from({numerator, denominator}));
    if (sum != 1) return false;
  }
  return true;
}

double denominator_bits(const ExactRows& rows) {
  std::map<std::int64_t, bool> seen;
  double bits = 0.0;
  for (const auto& row : rows) {
    for (const auto& [column, weight] : row) {
      if (seen.emplace(weight.denominator, true).second)
        bits += std::log2(static_cast<double>(weight.denominator));
    }
  }
  return bits;
}

std::optional<bool> product_is_mean(const std::vector<ExactRows>& rounds, std::int64_t count) {
  const std::size_t n = rounds.at(0).size();
  double bits = std::log2(static_cast<double>(n)) + 2.0;
  for (std::int64_t k = 0; k < count; ++k)
    bits += denominator_bits(rounds[static_cast<std::size_t>(k) % rounds.size()]);
  if (bits > 256 * PrimeField::kBits) return std::nullopt;
  for (int index = 0; index * PrimeField::kBits < bits; ++index) {
    const PrimeField field(index);
    std::vector<std::uint64_t> matrix = identity(n);
    for (std::int64_t k = 0; k < count; ++k)
      matrix = field.product(rounds[static_cast<std::size_t>(k) % rounds.size()], matrix);
    if (!is_mean(field, matrix, n)) return false;
  }
  return true;
}

std::int64_t first_mean_candidate(const std::vector<ExactRows>& rounds, std::int64_t first,
                                  std::int64_t last) {
  const std::size_t n = rounds.at(0).size();
  const PrimeField field(0);
  std::vector<std::uint64_t> matrix = identity(n);
  for (std::int64_t k = 0; k <= last; ++k) {
    if (k >= first && is_mean(field, matrix, n)) return k;
    if (k < last)
      matrix = field.product(rounds[static_cast<std::size_t>(k) % rounds.size()], matrix);
  }
  return -1;
}

}  // namespace starling
