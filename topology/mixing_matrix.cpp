#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "topology/mixing.h"

namespace starling {

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
