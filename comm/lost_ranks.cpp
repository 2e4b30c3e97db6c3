#include "comm/lost_ranks.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "core/error.h"

namespace starling {
namespace {

std::mutex lost_mutex;
std::atomic<bool> any_lost{false};
std::vector<LostRank>& known_losses() {
  static std::vector<LostRank> known;
  return known;
}

}  // namespace

void note_lost_rank(LostRank lost) {
  const std::scoped_lock lock(lost_mutex);
  std::vector<LostRank>& known = known_losses();
  if (std::none_of(known.begin(), known.end(),
                   [&](const LostRank& other) { return other.rank == lost.rank; }))
    known.push_back(std::move(lost));
  any_lost.store(true, std::memory_order_release);
}

bool any_lost_rank() { return any_lost.load(std::memory_order_acquire); }

void check_lost_ranks() {
  if (!any_lost_rank()) return;
  const std::vector<LostRank> known = lost_ranks();
  fail(ExitCode::kLost, "transport", "{}",
       known.empty() ? std::string("a rank was lost") : known.front().what);
}

std::vector<LostRank> lost_ranks() {
  const std::scoped_lock lock(lost_mutex);
  return known_losses();
}

void forget_lost_ranks() {
  const std::scoped_lock lock(lost_mutex);
  known_losses().clear();
  any_lost.store(false, std::memory_order_release);
}

}  // namespace starling
