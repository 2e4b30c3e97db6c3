#include "apps/data/partition.h"

#include <algorithm>
#include <cmath>

#include "apps/data/gamma_number.h"
#include "core/random.h"

namespace starling {
namespace {

/// The stream kPartition's "epoch" for the order of turns; smaller numbers are for the ranks'
/// proportions.
constexpr std::uint32_t kTurns = 0xffffffffu;

std::vector<double> proportions(double alpha, std::size_t classes, std::uint64_t seed,
                                std::uint32_t rank) {
  std::vector<double> values(classes);
  // Beyond these bounds the result is the same: one class only, or equal shares.
  const double shape = std::clamp(alpha, 1e-6, 1e9);
  for (std::size_t k = 0; k < classes; ++k) {
    std::uint64_t draw = 0;
    values[k] = log_gamma_number(shape, [&] {
      return random_bits(seed, RandomStream::kPartition, rank, std::uint64_t{k} << 20 | draw++);
    });
  }
  const double largest = *std::max_element(values.begin(), values.end());
  for (double& value : values) value = std::exp(value - largest);
  return values;
}

}  // namespace

std::vector<std::vector<std::int64_t>> dirichlet_shares(const Dataset& dataset, std::uint64_t seed,
                                                        double alpha, int ranks) {
  const DatasetInfo info = dataset.info();
  const std::int64_t samples = info.train_samples, share = samples / ranks;
  const auto classes = static_cast<std::size_t>(info.classes), n = static_cast<std::size_t>(ranks);

  std::vector<std::vector<std::int64_t>> members(classes);
  const std::vector<std::int32_t> label = training_classes(dataset);
  for (std::int64_t i = 0; i < samples; ++i)
    members[static_cast<std::size_t>(label[static_cast<std::size_t>(i)])].push_back(i);
  std::vector<std::size_t> taken(classes, 0);

  std::vector<std::vector<double>> weights(n), cumulative(n);
  for (std::size_t r = 0; r < n; ++r)
    weights[r] = proportions(alpha, classes, seed, static_cast<std::uint32_t>(r));
  // The cumulative weights of rank r over the classes that are left; if its weights there are all
  // 0, by the number of samples left.
  const auto accumulate_weights = [&](std::size_t r) {
    double total = 0.0;
    cumulative[r].resize(classes);
    for (std::size_t k = 0; k < classes; ++k)
      cumulative[r][k] = total += taken[k] < members[k].size() ? weights[r][k] : 0.0;
    if (total > 0.0) return;
    for (std::size_t k = 0; k < classes; ++k)
      cumulative[r][k] = total += static_cast<double>(members[k].size() - taken[k]);
  };
  for (std::size_t r = 0; r < n; ++r) accumulate_weights(r);

  std::vector<std::vector<std::int64_t>> shares(n);
  std::uint64_t draw = 0;
  for (std::int64_t turn = 0; turn < share; ++turn) {
    for (std::size_t r = 0; r < n; ++r) {
      for (;;) {
        const Philox4x32 bits = random_bits(seed, RandomStream::kPartition, kTurns, draw++);
        const double point = uniform_double(bits.v[0], bits.v[1]) * cumulative[r].back();
        const auto k =
            std::min(static_cast<std::size_t>(
                         std::upper_bound(cumulative[r].begin(), cumulative[r].end(), point) -
                         cumulative[r].begin()),
                     classes - 1);
        if (taken[k] < members[k].size()) {
          shares[r].push_back(members[k][taken[k]++]);
          break;
        }
        accumulate_weights(r);  // the class was used up since rank r's sums were computed
      }
    }
  }
  return shares;
}

}  // namespace starling
