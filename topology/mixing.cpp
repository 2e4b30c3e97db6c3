#include "topology/mixing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/philox.h"

namespace starling {
namespace {

constexpr int kDenseRanks = 64;

/// Fixed numbers in [-1, 1): an analysis gives the same result every time.
std::vector<double> random_block(std::size_t count) {
  std::vector<double> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Philox4x32 bits = philox(0x5741524Cull, i, 0);
    result[i] = 2.0 * uniform_double(bits.v[0], bits.v[1]) - 1.0;
  }
  return result;
}

/// Subtracts each column's mean over the ranks.
void remove_mean(std::vector<double>& x, std::size_t width) {
  const std::size_t n = x.size() / width;
  for (std::size_t c = 0; c < width; ++c) {
    double mean = 0.0;
    for (std::size_t i = 0; i < n; ++i) mean += x[i * width + c];
    mean /= static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) x[i * width + c] -= mean;
  }
}

double norm(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

/// The identity minus J/n: rounds applied to it give P - J/n.
std::vector<double> centred_identity(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<double> x(n * n, -1.0 / ranks);
  for (std::size_t i = 0; i < n; ++i) x[i * n + i] += 1.0;
  return x;
}

/// ρ(A) of a dense n × n matrix: A is squared 40 times, with its size taken out and kept as a logarithm.
double dense_radius(std::vector<double> a, std::size_t n) {
  double log_norm = 0.0;  // of A^(2^s), while `a` is that power divided by its norm
  double power = 1.0;
  std::vector<double> square(n * n);
  for (int s = 0;; ++s) {
    const double size = norm(a);
    if (!(size > 1e-200)) return 0.0;
    log_norm += std::log(size);
    if (s == 40) return std::exp(log_norm / power);
    for (double& value : a) value /= size;
    std::fill(square.begin(), square.end(), 0.0);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        const double left = a[i * n + j];
        for (std::size_t k = 0; k < n; ++k) square[i * n + k] += left * a[j * n + k];
      }
    }
    a.swap(square);
    log_norm *= 2.0;
    power *= 2.0;
  }
}

/// ρ(P - J/n) by Arnoldi's method on P^s: the spectral radius of the small matrix that P^s is on the space of a random vector v, P^s v,
/// P^2s v, … s is as many periods as leave a tenth of v (or what the work allows): slowly mixing schedules have their large eigenvalues
/// close together, and the power sets them apart.
double krylov_radius(const std::vector<MixingMatrix>& rounds) {
  constexpr std::size_t kSpace = 24;
  constexpr double kWork = 1e8;  // multiplications: a fraction of a second
  const auto n = static_cast<std::size_t>(rounds[0].ranks());
  const double work_per_period = static_cast<double>(n) * static_cast<double>(rounds.size());
  const int most = static_cast<int>(std::clamp(kWork / static_cast<double>(kSpace) / work_per_period, 1.0, 1e6));
  const auto apply = [&](std::vector<double>& x, int periods) {
    for (int s = 0; s < periods; ++s) {
      for (const MixingMatrix& round : rounds) round.apply(x, 1);
    }
    remove_mean(x, 1);
  };
  const auto scale = [](std::vector<double>& x, double factor) {
    for (double& value : x) value *= factor;
  };

  std::vector<double> x = random_block(n);
  remove_mean(x, 1);
  scale(x, 1.0 / norm(x));
  std::vector<std::vector<double>> basis{x};
  int periods = 0;
  while (periods < most && norm(x) > 0.1) apply(x, 1), ++periods;

  std::vector<double> small(kSpace * kSpace, 0.0);
  std::size_t size = 0;
  while (size < kSpace) {
    x = basis[size];
    apply(x, periods);
    const double before = norm(x);
    for (int pass = 0; pass < 2; ++pass) {  // twice is enough (Kahan and Parlett)
      for (std::size_t i = 0; i <= size; ++i) {
        const double part = std::inner_product(x.begin(), x.end(), basis[i].begin(), 0.0);
        small[i * kSpace + size] += part;
        for (std::size_t r = 0; r < n; ++r) x[r] -= part * basis[i][r];
      }
    }
    const double rest = norm(x);
    ++size;
    if (size == kSpace || rest <= 1e-12 * before) break;  // an invariant space: its eigenvalues are exact
    small[size * kSpace + size - 1] = rest;
    scale(x, 1.0 / rest);
    basis.push_back(x);
  }
  return std::pow(dense_radius(std::move(small), kSpace), 1.0 / periods);
}

}  // namespace

std::string structural_fault(const Round& round, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  if (!round.rows.empty()) {
    if (!round.groups.empty()) return "has groups and rows; give one of them";
    if (round.rows.size() != n) return fmt::format("has {} rows for {} ranks", round.rows.size(), ranks);
    for (std::size_t i = 0; i < n; ++i) {
      int before = -1;
      for (const auto& [j, weight] : round.rows[i]) {
        if (j <= before || j >= ranks)
          return fmt::format("row {} names rank {}: ranks 0 to {} in ascending order are right", i, j, ranks - 1);
        if (!std::isfinite(weight) || weight < 0.0)
          return fmt::format("row {} has the weight {} for rank {}: weights are 0 or more", i, weight, j);
        before = j;
      }
    }
    return {};
  }
  std::vector<char> used(n, 0);
  for (const Group& group : round.groups) {
    int before = -1;
    for (const int rank : group.ranks) {
      if (rank <= before || rank >= ranks)
        return fmt::format("a group names rank {}: ranks 0 to {} in ascending order are right", rank, ranks - 1);
      if (used[static_cast<std::size_t>(rank)]++) return fmt::format("rank {} is in two groups", rank);
      before = rank;
    }
    if (!std::isfinite(group.self_weight) || group.self_weight < 0.0 || group.self_weight > 1.0) {
      return fmt::format("a group has the self weight {}: 0 … 1 is right", group.self_weight);
    }
  }
  return {};
}

MixingMatrix::MixingMatrix(Round round, int ranks) : round_(std::move(round)), ranks_(ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  if (!round_.rows.empty()) {
    columns_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      for (const auto& [j, weight] : round_.rows[i]) {
        if (weight != 0.0) columns_[static_cast<std::size_t>(j)].emplace_back(static_cast<int>(i), weight);
      }
    }
    return;
  }
  group_of_.assign(n, -1);
  for (std::size_t g = 0; g < round_.groups.size(); ++g) {
    if (round_.groups[g].ranks.size() < 2) continue;
    for (const int rank : round_.groups[g].ranks) group_of_[static_cast<std::size_t>(rank)] = static_cast<int>(g);
  }
}

void MixingMatrix::apply(std::vector<double>& x, std::size_t width) const {
  if (!round_.rows.empty()) {
    std::vector<double> result(x.size(), 0.0);
    for (int i = 0; i < ranks_; ++i) {
      double* out = &result[static_cast<std::size_t>(i) * width];
      for (const auto& [j, weight] : round_.rows[static_cast<std::size_t>(i)]) {
        const double* in = &x[static_cast<std::size_t>(j) * width];
        for (std::size_t c = 0; c < width; ++c) out[c] += weight * in[c];
      }
    }
    x.swap(result);
    return;
  }
  std::vector<double> sum(width);
  for (const Group& group : round_.groups) {
    if (group.ranks.size() < 2) continue;
    const double other = (1.0 - group.self_weight) / static_cast<double>(group.ranks.size() - 1);
    std::fill(sum.begin(), sum.end(), 0.0);
    for (const int rank : group.ranks) {
      const double* row = &x[static_cast<std::size_t>(rank) * width];
      for (std::size_t c = 0; c < width; ++c) sum[c] += row[c];
    }
    for (const int rank : group.ranks) {
      double* row = &x[static_cast<std::size_t>(rank) * width];
      for (std::size_t c = 0; c < width; ++c) row[c] = (group.self_weight - other) * row[c] + other * sum[c];
    }
  }
}

std::vector<MixingMatrix> one_period(const Topology& topology) {
  const std::int64_t count = topology.period() > 0 ? topology.period() : kRoundsWithoutPeriod;
  std::vector<MixingMatrix> rounds;
  rounds.reserve(static_cast<std::size_t>(count));
  for (std::int64_t k = 0; k < count; ++k) rounds.emplace_back(topology.round(k), topology.ranks());
  return rounds;
}

std::string mixing_fault(const std::vector<MixingMatrix>& rounds) {
  // A graph with one node for each (round, rank) and an edge from (k, j) to (k + 1 mod T, i) where W(k)_ij ≠ 0. The product is primitive if
  // all ranks of round 0 reach each other and the lengths of all cycles have T as greatest common divisor. This takes time linear in the
  // number of weights.
  const auto n = static_cast<std::size_t>(rounds[0].ranks());
  const std::size_t length = rounds.size();
  const auto search = [&](bool forward) {
    std::vector<std::int64_t> level(n * length, -1);
    std::vector<std::size_t> queue{0};
    level[0] = 0;
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const std::size_t node = queue[head], k = node / n;
      const std::size_t next = forward ? (k + 1) % length : (k + length - 1) % length;
      const auto visit = [&](int rank, double) {
        const std::size_t target = next * n + static_cast<std::size_t>(rank);
        if (level[target] >= 0) return;
        level[target] = level[node] + 1;
        queue.push_back(target);
      };
      if (forward) {
        rounds[k].for_column(static_cast<int>(node % n), visit);
      } else {
        rounds[next].for_row(static_cast<int>(node % n), visit);
      }
    }
    return level;
  };
  const std::vector<std::int64_t> from = search(true), to = search(false);
  for (std::size_t i = 0; i < n; ++i) {
    if (from[i] < 0) return fmt::format("rank {} never hears from rank 0", i);
    if (to[i] < 0) return fmt::format("rank 0 never hears from rank {}", i);
  }
  std::int64_t divisor = 0;
  for (std::size_t node = 0; node < from.size(); ++node) {
    if (from[node] < 0 || to[node] < 0) continue;
    const std::size_t next = (node / n + 1) % length;
    rounds[node / n].for_column(static_cast<int>(node % n), [&](int rank, double) {
      const std::size_t target = next * n + static_cast<std::size_t>(rank);
      if (to[target] >= 0) divisor = std::gcd(divisor, from[node] + 1 - from[target]);
    });
  }
  if (divisor == static_cast<std::int64_t>(length)) return {};
  return "values only change places and never mix; give ranks a self weight above 0";
}

double disagreement_radius(const std::vector<MixingMatrix>& rounds) {
  if (rounds[0].ranks() == 1) return 0.0;
  if (rounds[0].ranks() > kDenseRanks) return std::min(1.0, krylov_radius(rounds));
  const auto n = static_cast<std::size_t>(rounds[0].ranks());
  std::vector<double> product = centred_identity(rounds[0].ranks());
  for (const MixingMatrix& round : rounds) round.apply(product, n);
  remove_mean(product, n);
  return std::min(1.0, dense_radius(std::move(product), n));
}

std::vector<double> disagreement_curve(const Topology& topology, std::int64_t rounds) {
  const auto n = static_cast<std::size_t>(topology.ranks());
  const bool exact = n <= 256;
  const std::size_t width = exact ? n : 16;
  std::vector<double> x = exact ? centred_identity(topology.ranks()) : random_block(n * width);
  remove_mean(x, width);
  const double start = norm(x);
  std::vector<double> curve{n == 1 ? 0.0 : 1.0};
  for (std::int64_t k = 0; k < rounds; ++k) {
    MixingMatrix(topology.round(k), topology.ranks()).apply(x, width);
    curve.push_back(n == 1 ? 0.0 : norm(x) / start);
  }
  return curve;
}

}  // namespace starling
