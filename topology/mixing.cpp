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

}  // namespace

std::vector<double> identity_matrix(int n) {
  const auto size = static_cast<std::size_t>(n);
  std::vector<double> x(size * size, 0.0);
  for (std::size_t i = 0; i < size; ++i) x[i * size + i] = 1.0;
  return x;
}

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

namespace {

/// Multiplications that one period takes for one number a rank.
double period_work(const std::vector<MixingMatrix>& rounds) {
  double work = 0.0;
  for (const MixingMatrix& round : rounds) work += round.work();
  return work;
}

/// ρ(P - J/n) by Arnoldi's method on P^s: the spectral radius of the small matrix that P^s is on
/// the space of a vector v, P^s v, P^2s v, …, where v was random and s is as many periods as left a
/// tenth of it, or as `budget` multiplications allow: slowly mixing schedules have their large
/// eigenvalues close together, and the power sets them apart. `settled`: three quarters of the
/// space gave the same 1 - ρ^(1/s) within 1e-3.
double krylov_radius(const std::vector<MixingMatrix>& rounds, double budget, bool& settled) {
  const auto n = static_cast<std::size_t>(rounds[0].ranks());
  const double work_per_period = period_work(rounds);
  // The larger the space, the closer eigenvalues it tells apart: a large one serves better than
  // many periods in a small one.
  const auto space = std::min(
      n - 1, static_cast<std::size_t>(std::clamp(4.0 * budget / work_per_period, 24.0, 128.0)));
  const int most =
      static_cast<int>(std::clamp(budget / static_cast<double>(space) / work_per_period, 1.0, 1e6));
  const auto apply = [&](std::vector<double>& x, int periods) {
    for (int s = 0; s < periods; ++s) {
      for (const MixingMatrix& round : rounds) round.apply(x, 1);
    }
    remove_mean(x, 1);
  };
  const auto scale = [](std::vector<double>& x, double factor) {
    for (double& value : x) value *= factor;
  };

  // The start has forgotten what fades fast: the space need not spend its dimensions on that.
  std::vector<double> x = random_block(n);
  remove_mean(x, 1);
  scale(x, 1.0 / norm(x));
  const int longest = static_cast<int>(std::clamp(budget / work_per_period, 1.0, 1e6));
  int periods = 0;
  while (periods < longest && norm(x) > 0.1) apply(x, 1), ++periods;
  settled = true;
  if (!(norm(x) > 1e-100)) return 0.0;
  scale(x, 1.0 / norm(x));
  std::vector<std::vector<double>> basis{x};
  periods = std::clamp(periods, 1, most);

  std::vector<double> small(space * space, 0.0);
  std::size_t size = 0;
  while (size < space) {
    x = basis[size];
    apply(x, periods);
    const double before = norm(x);
    for (int pass = 0; pass < 2; ++pass) {  // twice is enough (Kahan and Parlett)
      for (std::size_t i = 0; i <= size; ++i) {
        const double part = std::inner_product(x.begin(), x.end(), basis[i].begin(), 0.0);
        small[i * space + size] += part;
        for (std::size_t r = 0; r < n; ++r) x[r] -= part * basis[i][r];
      }
    }
    const double rest = norm(x);
    ++size;
    // The space is invariant: its eigenvalues are exact.
    if (size == space || rest <= 1e-12 * before) break;
    small[size * space + size - 1] = rest;
    scale(x, 1.0 / rest);
    basis.push_back(x);
  }
  const std::size_t most_of_it = space * 3 / 4;
  std::vector<double> part(most_of_it * most_of_it);
  for (std::size_t i = 0; i < most_of_it; ++i)
    std::copy_n(&small[i * space], most_of_it, &part[i * most_of_it]);
  const double radius = std::pow(dense_radius(std::move(small), space), 1.0 / periods);
  const double coarse = std::pow(dense_radius(std::move(part), most_of_it), 1.0 / periods);
  settled = size < space || std::fabs(radius - coarse) <= 1e-3 * (1.0 - radius);
  return radius;
}

/// Says why ranks do not all reach each other. Where every rank keeps some of its own value in
/// every round, the product over a period has an edge for each edge of a round, and a loop for each
/// rank. So it is primitive if all ranks reach each other over the rounds' edges together.
std::string reach_fault(const std::vector<MixingMatrix>& rounds) {
  for (const bool forward : {true, false}) {
    std::vector<char> marked(static_cast<std::size_t>(rounds[0].ranks()), 0);
    marked[0] = 1;
    for (std::ptrdiff_t before = 0, count = 1; count > before;) {
      before = count;
      for (const MixingMatrix& round : rounds) round.mark(marked, forward);
      count = std::count(marked.begin(), marked.end(), 1);
    }
    const auto missing = std::find(marked.begin(), marked.end(), 0);
    if (missing == marked.end()) continue;
    const auto rank = missing - marked.begin();
    return forward ? fmt::format("rank {} never hears from rank 0", rank)
                   : fmt::format("rank 0 never hears from rank {}", rank);
  }
  return {};
}

std::string primitive_fault(const std::vector<MixingMatrix>& rounds) {
  // A graph with one node for each (round, rank) and an edge from (k, j) to (k + 1 mod T, i) where
  // W(k)_ij ≠ 0. The product is primitive if all ranks of round 0 reach each other and the lengths
  // of all cycles have T as greatest common divisor. This takes time linear in the number of
  // weights.
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

}  // namespace

std::vector<MixingMatrix> one_period(const Topology& topology) {
  const std::int64_t count = topology.period() > 0 ? topology.period() : kRoundsWithoutPeriod;
  std::vector<MixingMatrix> rounds;
  rounds.reserve(static_cast<std::size_t>(count));
  for (std::int64_t k = 0; k < count; ++k) rounds.emplace_back(topology.round(k), topology.ranks());
  return rounds;
}

std::string mixing_fault(const std::vector<MixingMatrix>& rounds) {
  const bool kept = std::all_of(rounds.begin(), rounds.end(), [](const MixingMatrix& round) {
    return round.positive_diagonal();
  });
  return kept ? reach_fault(rounds) : primitive_fault(rounds);
}

double disagreement_radius(const std::vector<MixingMatrix>& rounds) {
  if (rounds[0].ranks() == 1) return 0.0;
  if (rounds[0].ranks() > kDenseRanks) {
    bool settled = false;
    double radius = 1.0;
    for (double budget = 1e8; !settled && budget < 2e9; budget *= 4)
      radius = krylov_radius(rounds, budget, settled);
    return std::min(1.0, radius);
  }
  const auto n = static_cast<std::size_t>(rounds[0].ranks());
  std::vector<double> product = identity_matrix(rounds[0].ranks());
  remove_mean(product, n);
  for (const MixingMatrix& round : rounds) round.apply(product, n);
  remove_mean(product, n);
  return std::min(1.0, dense_radius(std::move(product), n));
}

ProductDeviation product_deviation(const std::vector<MixingMatrix>& rounds) {
  constexpr std::size_t kBlock = 32;
  const auto n = static_cast<std::size_t>(rounds[0].ranks());
  const double affordable = 1e9 / period_work(rounds);
  std::size_t columns = n;
  if (static_cast<double>(n) > affordable)
    columns = std::clamp(static_cast<std::size_t>(affordable), std::size_t{16}, n);
  ProductDeviation result;
  result.columns = static_cast<int>(columns);
  for (std::size_t first = 0; first < columns; first += kBlock) {
    const std::size_t width = std::min(kBlock, columns - first);
    std::vector<double> x(n * width, 0.0);
    for (std::size_t c = 0; c < width; ++c) x[(first + c) * n / columns * width + c] = 1.0;
    for (const MixingMatrix& round : rounds) round.apply(x, width);
    for (const double entry : x)
      result.largest = std::max(result.largest, std::fabs(entry - 1.0 / static_cast<double>(n)));
  }
  return result;
}

std::vector<std::vector<double>> dense_product(const std::vector<MixingMatrix>& rounds) {
  const auto n = static_cast<std::size_t>(rounds[0].ranks());
  require(n <= kDenseRanks, "topology", "a dense product of {} ranks", n);
  std::vector<double> x = identity_matrix(rounds[0].ranks());
  for (const MixingMatrix& round : rounds) round.apply(x, n);
  std::vector<std::vector<double>> result;
  for (std::size_t i = 0; i < n; ++i) result.emplace_back(&x[i * n], &x[i * n] + n);
  return result;
}

std::vector<double> disagreement_curve(const Topology& topology, std::int64_t rounds) {
  const auto n = static_cast<std::size_t>(topology.ranks());
  const bool exact = n <= 256;
  const std::size_t width = exact ? n : 16;
  std::vector<double> x = exact ? identity_matrix(topology.ranks()) : random_block(n * width);
  remove_mean(x, width);
  const double start = norm(x);
  std::vector<double> curve{n == 1 ? 0.0 : 1.0};
  for (std::int64_t k = 0; k < rounds; ++k) {
    MixingMatrix(topology.round(k), topology.ranks()).apply(x, width);
    curve.push_back(n == 1 ? 0.0 : norm(x) / start);
  }
  return curve;
}

std::string structural_fault(const Round& round, int ranks) {
  if (round.ranks_per_node < 1 || ranks % round.ranks_per_node != 0)
    return fmt::format("is over nodes of {} ranks, which do not divide {}", round.ranks_per_node,
                       ranks);
  const int units = ranks / round.ranks_per_node;
  const bool hierarchical = round.ranks_per_node > 1;
  const char* unit = hierarchical ? "node" : "rank";
  const auto n = static_cast<std::size_t>(units);
  if (!round.rows.empty()) {
    if (!round.groups.empty()) return "has groups and rows; give one of them";
    if (round.rows.size() != n)
      return fmt::format("has {} rows for {} {}s", round.rows.size(), units, unit);
    for (std::size_t i = 0; i < n; ++i) {
      int before = -1;
      for (const auto& [j, weight] : round.rows[i]) {
        if (j <= before || j >= units)
          return fmt::format("row {} names {} {}: {}s 0 to {} in ascending order are right", i,
                             unit, j, unit, units - 1);
        if (!std::isfinite(weight) || weight < 0.0)
          return fmt::format("row {} has the weight {} for {} {}: weights are 0 or more", i, weight,
                             unit, j);
        before = j;
      }
    }
    return {};
  }
  std::vector<char> used(n, 0);
  for (const Group& group : round.groups) {
    int before = -1;
    for (const int rank : group.ranks) {
      if (rank <= before || rank >= units)
        return fmt::format("a group names {} {}: {}s 0 to {} in ascending order are right", unit,
                           rank, unit, units - 1);
      if (used[static_cast<std::size_t>(rank)]++)
        return fmt::format("{} {} is in two groups", unit, rank);
      before = rank;
    }
    if (!std::isfinite(group.self_weight) || group.self_weight < 0.0 || group.self_weight > 1.0) {
      return fmt::format("a group has the self weight {}: 0 … 1 is right", group.self_weight);
    }
  }
  const auto left_out = std::find(used.begin(), used.end(), 0);
  if (hierarchical && left_out != used.end())
    return fmt::format(
        "names no node {}: a hierarchical round names every node, one alone as a group of one",
        left_out - used.begin());
  return {};
}

MixingMatrix::MixingMatrix(Round round, int ranks)
    : units_(ranks / round.ranks_per_node), per_unit_(round.ranks_per_node) {
  const auto n = static_cast<std::size_t>(units_);
  if (!round.rows.empty()) {
    rows_ = std::move(round.rows);
    columns_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      for (const auto& [j, weight] : rows_[i]) {
        if (weight != 0.0)
          columns_[static_cast<std::size_t>(j)].emplace_back(static_cast<int>(i), weight);
      }
    }
    return;
  }
  std::erase_if(round.groups, [](const Group& group) { return group.ranks.size() < 2; });
  if (std::any_of(round.groups.begin(), round.groups.end(),
                  [](const Group& group) { return group.ranks.size() > 2; })) {
    groups_ = std::move(round.groups);
    group_of_.assign(n, -1);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (const int rank : groups_[g].ranks)
        group_of_[static_cast<std::size_t>(rank)] = static_cast<int>(g);
    }
    return;
  }
  partner_.resize(n);
  std::iota(partner_.begin(), partner_.end(), 0);
  if (!round.groups.empty()) self_weight_ = round.groups[0].self_weight;
  const bool alike = std::all_of(round.groups.begin(), round.groups.end(),
                                 [&](const Group& g) { return g.self_weight == self_weight_; });
  if (!alike) pair_weights_.assign(n, 1.0);
  for (const Group& group : round.groups) {
    const auto a = static_cast<std::size_t>(group.ranks[0]),
               b = static_cast<std::size_t>(group.ranks[1]);
    std::swap(partner_[a], partner_[b]);
    if (!alike) pair_weights_[a] = pair_weights_[b] = group.self_weight;
  }
}

bool MixingMatrix::positive_diagonal() const {
  for (int i = 0; i < units_; ++i) {
    bool positive = false;
    if (by_rows()) {
      unit_row(i, [&](int j, double) { positive |= j == i; });
    } else if (!partner_.empty()) {
      positive = partner_[static_cast<std::size_t>(i)] == i ||
                 pair_weight(static_cast<std::size_t>(i)) > 0.0;
    } else {
      const int group = group_of_[static_cast<std::size_t>(i)];
      positive = group < 0 || groups_[static_cast<std::size_t>(group)].self_weight > 0.0;
    }
    if (!positive) return false;
  }
  return true;
}

void MixingMatrix::mark(std::vector<char>& marked, bool forward) const {
  if (per_unit_ > 1) {  // ranks of a node hear from each other
    std::vector<char> units(static_cast<std::size_t>(units_), 0);
    const auto size = static_cast<std::size_t>(per_unit_);
    for (std::size_t i = 0; i < marked.size(); ++i) units[i / size] |= marked[i];
    mark_units(units, forward);
    for (std::size_t i = 0; i < marked.size(); ++i) marked[i] = units[i / size];
    return;
  }
  mark_units(marked, forward);
}

void MixingMatrix::mark_units(std::vector<char>& marked, bool forward) const {
  const auto n = static_cast<std::size_t>(units_);
  const auto at = [&](int i) -> char& { return marked[static_cast<std::size_t>(i)]; };
  if (by_rows()) {
    for (std::size_t i = 0; i < n; ++i) {
      for (const auto& [j, weight] : rows_[i]) {
        if (weight == 0.0) continue;
        if (forward) {
          marked[i] |= at(j);
        } else {
          at(j) |= marked[i];
        }
      }
    }
  } else if (!partner_.empty()) {
    for (std::size_t i = 0; i < n; ++i) {
      if (pair_weight(i) < 1.0) marked[i] |= at(partner_[i]);
    }
  } else {
    for (const Group& group : groups_) {
      if (group.self_weight >= 1.0 || std::none_of(group.ranks.begin(), group.ranks.end(), at))
        continue;
      for (const int rank : group.ranks) at(rank) = 1;
    }
  }
}

double MixingMatrix::work() const {
  double work = static_cast<double>(ranks());
  for (const Row& row : rows_) work += static_cast<double>(row.size());
  return work;
}

void MixingMatrix::apply(std::vector<double>& x, std::size_t width) const {
  if (per_unit_ == 1) return apply_units(x, width);
  const auto size = static_cast<std::size_t>(per_unit_);
  std::vector<double> means(static_cast<std::size_t>(units_) * width, 0.0);
  for (std::size_t i = 0; i < x.size() / width; ++i) {
    for (std::size_t c = 0; c < width; ++c) means[i / size * width + c] += x[i * width + c];
  }
  for (double& mean : means) mean /= per_unit_;
  apply_units(means, width);
  for (std::size_t i = 0; i < x.size() / width; ++i) {
    std::copy_n(&means[i / size * width], width, &x[i * width]);
  }
}

void MixingMatrix::apply_units(std::vector<double>& x, std::size_t width) const {
  if (by_rows()) {
    std::vector<double> result(x.size(), 0.0);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      double* out = &result[i * width];
      for (const auto& [j, weight] : rows_[i]) {
        const double* in = &x[static_cast<std::size_t>(j) * width];
        for (std::size_t c = 0; c < width; ++c) out[c] += weight * in[c];
      }
    }
    x.swap(result);
    return;
  }
  for (std::size_t i = 0; i < partner_.size(); ++i) {
    const auto j = static_cast<std::size_t>(partner_[i]);
    if (j <= i) continue;
    const double self = pair_weight(i), other = 1.0 - self;
    for (std::size_t c = 0; c < width; ++c) {
      double &a = x[i * width + c], &b = x[j * width + c];
      const double mixed = self * a + other * b;
      b = self * b + other * a;
      a = mixed;
    }
  }
  std::vector<double> sum(groups_.empty() ? 0 : width);
  for (const Group& group : groups_) {
    const double other = (1.0 - group.self_weight) / static_cast<double>(group.ranks.size() - 1);
    std::fill(sum.begin(), sum.end(), 0.0);
    for (const int rank : group.ranks) {
      const double* row = &x[static_cast<std::size_t>(rank) * width];
      for (std::size_t c = 0; c < width; ++c) sum[c] += row[c];
    }
    for (const int rank : group.ranks) {
      double* row = &x[static_cast<std::size_t>(rank) * width];
      for (std::size_t c = 0; c < width; ++c)
        row[c] = (group.self_weight - other) * row[c] + other * sum[c];
    }
  }
}

std::vector<std::vector<double>> dense_matrix(const MixingMatrix& matrix) {
  const auto n = static_cast<std::size_t>(matrix.ranks());
  std::vector<std::vector<double>> result(n, std::vector<double>(n, 0.0));
  for (std::size_t i = 0; i < n; ++i) {
    matrix.for_row(static_cast<int>(i),
                   [&](int j, double weight) { result[i][static_cast<std::size_t>(j)] = weight; });
  }
  return result;
}

}  // namespace starling
