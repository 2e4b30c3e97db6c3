#include "apps/data/loss_shares.h"

#include <cstddef>
#include <utility>

#include "layers/functions.h"

namespace starling {

LossShares::LossShares(std::vector<std::int32_t> counts, std::int64_t batch_size,
                       std::int64_t accumulate, const RankLayout& site,
                       AveragesGradients averages_gradients)
    : counts_(std::move(counts)),
      batch_size_(batch_size),
      accumulate_(accumulate),
      ranks_(site.ranks),
      replica_(site.replica),
      averages_gradients_(std::move(averages_gradients)) {}

/// The number of counted targets in each micro-batch.
std::vector<double> LossShares::counted_targets(std::span<const std::int64_t> order,
                                                std::int64_t batches) const {
  std::vector<double> result(static_cast<std::size_t>(batches), 0.0);
  for (std::size_t k = 0; k < static_cast<std::size_t>(batches * batch_size_); ++k)
    result[k / static_cast<std::size_t>(batch_size_)] +=
        counts_[static_cast<std::size_t>(order[k])];
  return result;
}

std::vector<double> LossShares::of_epoch(std::int64_t epoch, std::int64_t batches, int rank,
                                         const OrderOfRank& order) const {
  std::vector<double> shares = counted_targets(order(rank), batches);
  const auto group = static_cast<std::size_t>(accumulate_);
  // Counted targets of an update, of the replica's ranks and of all
  std::vector<double> own((shares.size() + group - 1) / group), all(own.size());
  std::vector<char> averaged(own.size());
  bool any = false;
  for (std::size_t u = 0; ranks_ > 1 && u < own.size(); ++u)
    any |= averaged[u] = averages_gradients_(epoch, static_cast<std::int64_t>(u * group));
  const auto add = [&](const std::vector<double>& counts, std::vector<double>& to) {
    for (std::size_t b = 0; b < counts.size(); ++b) to[b / group] += counts[b];
  };
  for (int other = 0; other < ranks_; ++other) {
    const bool near = other / replica_ == rank / replica_;
    if (!any && !near) continue;
    const std::vector<double> counts =
        other == rank ? shares : counted_targets(order(other), batches);
    if (near) add(counts, own);
    add(counts, all);
  }
  for (std::size_t b = 0; b < shares.size(); ++b) {
    const std::size_t u = b / group;
    const double total = averaged[u] ? all[u] / ranks_ : own[u] / replica_;
    shares[b] = total > 0.0 ? shares[b] / total : 0.0;
  }
  return shares;
}

Variable LossShares::apply(const Batch& batch, const Variable& loss, Pass& pass) {
  const Tensor share = batch[kTensor].slice(0, Shape{});
  return functions::multiply(
      loss, Variable(functions::in_format(share, loss.dtype(), pass.backend)), pass);
}

}  // namespace starling
