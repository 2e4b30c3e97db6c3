#include "topology/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/philox.h"
#include "core/text.h"
#include "topology/builtin.h"
#include "topology/mixing.h"
#include "topology/rational.h"

namespace starling {
namespace {

constexpr int kExactRanks = 64;
constexpr double kTolerance = 1e-12;
constexpr double kMostEntries = 0x1p26;  ///< ranks × rounds: some 300 MB

struct Analysis {
  TopologyReport report;
  std::string row_fault, column_fault, mixing_fault;  ///< the first of each, "" if none
};

/// Sums of all rows, or columns, of a round.
std::vector<double> sums(const MixingMatrix& matrix, bool columns) {
  std::vector<double> result(static_cast<std::size_t>(matrix.ranks()), 0.0);
  for (int i = 0; i < matrix.ranks(); ++i) {
    const auto add = [&](int, double weight) { result[static_cast<std::size_t>(i)] += weight; };
    if (columns) {
      matrix.for_column(i, add);
    } else {
      matrix.for_row(i, add);
    }
  }
  return result;
}

std::string sum_fault(const MixingMatrix& matrix, const ExactRows* exact, std::int64_t k,
                      bool columns) {
  if (!matrix.by_rows()) return {};  // rows and columns of a group sum to 1 by definition
  const std::vector<double> found = sums(matrix, columns);
  std::vector<std::vector<Rational>> terms(exact ? found.size() : 0);
  for (std::size_t i = 0; i < terms.size(); ++i) {
    for (const auto& [j, weight] : (*exact)[i])
      terms[columns ? static_cast<std::size_t>(j) : i].push_back(weight);
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (exact ? sums_to_one(terms[i]) : std::fabs(found[i] - 1.0) <= kTolerance) continue;
    return fmt::format("{} {} of round {} sums to {:.15g}, not 1", columns ? "column" : "row", i, k,
                       found[i]);
  }
  return {};
}

/// The smallest K up to `limit` after which all columns of x hold their mean; -1: none.
std::int64_t first_mean(const std::vector<MixingMatrix>& rounds, std::vector<double> x,
                        std::int64_t limit, double tolerance) {
  const auto n = static_cast<std::size_t>(rounds[0].ranks()), width = x.size() / n;
  std::vector<double> mean(width, 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) mean[i % width] += x[i] / static_cast<double>(n);
  for (std::int64_t k = 0; k <= limit; ++k) {
    std::size_t i = 0;
    while (i < x.size() && std::fabs(x[i] - mean[i % width]) <= tolerance) ++i;
    if (i == x.size()) return k;
    if (k < limit) rounds[static_cast<std::size_t>(k) % rounds.size()].apply(x, width);
  }
  return -1;
}

/// Three random columns, for many ranks.
std::vector<double> random_columns(std::size_t ranks) {
  std::vector<double> x(3 * ranks);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Philox4x32 bits = philox(1, i, 1);
    x[i] = uniform_double(bits.v[0], bits.v[1]);
  }
  return x;
}

std::optional<std::int64_t> exact_consensus(const std::vector<MixingMatrix>& rounds,
                                            const std::vector<ExactRows>& exact, bool periodic) {
  // P - J/n may be nilpotent: then up to n - 1 periods pass before it vanishes.
  const auto length = static_cast<std::int64_t>(rounds.size());
  const std::int64_t limit = periodic ? std::min<std::int64_t>(length * rounds[0].ranks(),
                                                               std::max<std::int64_t>(length, 512))
                                      : length;
  // By size: only a screen for the exact search
  std::int64_t k = first_mean(rounds, identity_matrix(rounds[0].ranks()), limit, 1e-9);
  while (k >= 0) {
    k = first_mean_candidate(exact, k, limit);
    if (k < 0) break;
    const std::optional<bool> proven = product_is_mean(exact, k);
    // (beyond 256 primes' worth of denominators one prime has to do: wrong once in 2^59)
    if (proven.value_or(true)) return k;
    ++k;
  }
  return std::nullopt;
}

Analysis inspect(const Topology& topology, const std::string& name) {
  const int n = topology.ranks();
  const std::int64_t count = topology.period() > 0 ? topology.period() : kRoundsWithoutPeriod;
  if (static_cast<double>(count) * n > kMostEntries) {
    fail(ExitCode::kUsage, "topology",
         "'{}' for {} ranks has {} rounds, too many to check: at most {:.0f} ranks × rounds are",
         name, n, count, kMostEntries);
  }
  for (std::int64_t k = 0; k < count; ++k) {
    const std::string fault = structural_fault(topology.round(k), n);
    if (!fault.empty())
      fail(ExitCode::kUsage, "topology", "'{}' for {} ranks: round {}: {}", name, n, k, fault);
  }
  const std::vector<MixingMatrix> rounds = one_period(topology);
  Analysis analysis;
  TopologyReport& report = analysis.report;
  std::vector<ExactRows> exact;
  report.exact = n <= kExactRanks;
  for (std::size_t k = 0; k < rounds.size() && report.exact; ++k) {
    std::optional<ExactRows> rows = exact_rows(topology.round(static_cast<std::int64_t>(k)), n);
    // Otherwise a weight is no small fraction: sums within the tolerance must do.
    report.exact = rows.has_value();
    if (rows) exact.push_back(std::move(*rows));
  }
  for (std::size_t k = 0; k < rounds.size(); ++k) {
    const ExactRows* rows = report.exact ? &exact[k] : nullptr;
    const auto index = static_cast<std::int64_t>(k);
    if (analysis.row_fault.empty()) analysis.row_fault = sum_fault(rounds[k], rows, index, false);
    if (analysis.column_fault.empty())
      analysis.column_fault = sum_fault(rounds[k], rows, index, true);
  }
  report.row_stochastic = analysis.row_fault.empty();
  report.column_stochastic = analysis.column_fault.empty();
  analysis.mixing_fault = mixing_fault(rounds);
  report.mixes = analysis.mixing_fault.empty();
  if (!report.row_stochastic || !report.column_stochastic) return analysis;

  if (report.exact) {
    report.rounds_to_consensus = exact_consensus(rounds, exact, topology.period() > 0);
  } else {
    const std::int64_t k = first_mean(
        rounds, n <= kExactRanks ? identity_matrix(n) : random_columns(static_cast<std::size_t>(n)),
        static_cast<std::int64_t>(rounds.size()), kTolerance);
    if (k >= 0) report.rounds_to_consensus = k;
  }
  if (report.rounds_to_consensus) {
    report.spectral_gap = 1.0;
  } else if (report.mixes) {
    report.spectral_gap = std::clamp(
        1.0 - std::pow(disagreement_radius(rounds), 1.0 / static_cast<double>(rounds.size())), 0.0,
        1.0);
  }
  return analysis;
}

}  // namespace

std::int64_t curve_length(const TopologyReport& report) {
  const double fall =
      report.rounds_to_consensus
          ? static_cast<double>(*report.rounds_to_consensus) + 1
          : std::log(1e-4) / std::log(std::clamp(1.0 - report.spectral_gap, 1e-9, 1.0 - 1e-9));
  return static_cast<std::int64_t>(std::clamp(fall, 4.0, 64.0));
}

TopologyReport analyse(const Topology& topology) { return inspect(topology, "topology").report; }

TopologyReport check_topology(const Topology& topology, const std::string& name,
                              TopologyKind kind) {
  const int n = topology.ranks();
  const Analysis analysis = inspect(topology, name);
  if (!analysis.row_fault.empty() && kind != TopologyKind::kColumnStochastic) {
    fail(ExitCode::kUsage, "topology",
         "'{}' for {} ranks: {}; the weights that a rank mixes must sum to 1{}", name, n,
         analysis.row_fault,
         analysis.column_fault.empty()
             ? ", but for algorithms that weigh what they received (push_sum)"
             : "");
  }
  if (!analysis.column_fault.empty()) {
    fail(ExitCode::kUsage, "topology",
         "'{}' for {} ranks: {}; columns must sum to 1 too, or the mean of all ranks drifts", name,
         n, analysis.column_fault);
  }
  if (!analysis.mixing_fault.empty()) {
    const std::size_t count =
        static_cast<std::size_t>(topology.period() > 0 ? topology.period() : kRoundsWithoutPeriod);
    fail(ExitCode::kUsage, "topology", "'{}' for {} ranks does not mix in its {}: {}", name, n,
         counted(static_cast<std::int64_t>(count), "round"), analysis.mixing_fault);
  }
  return analysis.report;
}

std::string kind_fault(const Topology& topology, TopologyKind kind) {
  if (kind < TopologyKind::kSymmetric || topology.ranks() == 1) return {};
  if (kind == TopologyKind::kSymmetricFixed && topology.period() != 1) return "its rounds differ";
  const std::vector<MixingMatrix> rounds = one_period(topology);
  for (std::size_t k = 0; k < rounds.size(); ++k) {
    if (!rounds[k].by_rows()) continue;  // groups are symmetric
    for (int i = 0; i < topology.ranks(); ++i) {
      std::map<int, double> difference;
      rounds[k].for_row(i, [&](int j, double weight) { difference[j] += weight; });
      rounds[k].for_column(i, [&](int j, double weight) { difference[j] -= weight; });
      for (const auto& [j, value] : difference) {
        if (std::fabs(value) > kTolerance)
          return fmt::format("in its round {} ranks {} and {} give each other different weights", k,
                             i, j);
      }
    }
  }
  return {};
}

void check_kind(const Topology& topology, const std::string& name, TopologyKind kind,
                const std::string& algorithm, const RankLayout& site,
                const ConfigSection& section) {
  const std::string fault = kind_fault(topology, kind);
  if (fault.empty()) return;
  section.error("type", "'{}' for {} ranks is not for the algorithm {}: {}; these are: {}", name,
                topology.ranks(), algorithm, fault, topologies_that_take(site, kind));
}

}  // namespace starling
