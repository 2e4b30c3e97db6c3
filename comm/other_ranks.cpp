#include "comm/other_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <span>
#include <utility>

#include "comm/flight.h"
#include "core/error.h"
#include "core/flight_recorder.h"
#include "core/host.h"
#include "core/log.h"

namespace starling {
namespace {

std::mutex lost_mutex;
std::atomic<bool> any_lost{false};
std::vector<LostRank>& known_losses() {
  static std::vector<LostRank> known;
  return known;
}

std::mutex processes_mutex;
std::map<int, int>& rank_processes() {
  static std::map<int, int> processes;
  return processes;
}

std::string heard_text(const AwaitedRank& rank) {
  return (rank.seconds_ago < 0 ? std::string("never heard of")
                               : fmt::format("last heard of {:.1f} s ago", rank.seconds_ago)) +
         (rank.doing.empty() ? "" : fmt::format(" ({})", rank.doing));
}
std::string name_text(const AwaitedRank& rank) {
  return fmt::format("rank {}{}", rank.rank, rank.host.empty() ? "" : " on host " + rank.host);
}

}  // namespace

LateRanks::LateRanks(double limit_seconds, double least_seconds)
    : first_(std::max(least_seconds, std::min(10.0, limit_seconds / 3))) {}

bool LateRanks::due(int rank, double waited) {
  return waited >= after_.try_emplace(rank, first_).first->second &&
         std::find(late_.begin(), late_.end(), rank) == late_.end();
}

void LateRanks::warn(const AwaitedRank& rank, double waited, const std::string& what,
                     const ExchangeLabel& label) {
  late_.push_back(rank.rank);
  after_[rank.rank] *= 2;
  note_flight(FlightEvent::kLate, label, std::span(&rank.rank, 1));
  const std::string state = state_of_rank(rank.rank);
  log::warning("{} is late: waited {:.1f} s for {}; {}{}", name_text(rank), waited, what,
               heard_text(rank), state.empty() ? "" : "; " + state);
}

void LateRanks::came(double waited) {
  for (const int rank : late_) log::warning("rank {} came after {:.1f} s", rank, waited);
  late_.clear();
}

void fail_wait(int rank, const std::string& what, const ExchangeLabel& label, double limit_seconds,
               std::vector<AwaitedRank> awaited) {
  // Missing ranks first, the longest silent of them first, which is most likely the lost one.
  std::stable_sort(awaited.begin(), awaited.end(), [](const AwaitedRank& a, const AwaitedRank& b) {
    if (a.missing != b.missing) return a.missing;
    if ((a.seconds_ago < 0) != (b.seconds_ago < 0)) return a.seconds_ago < 0;
    return a.seconds_ago > b.seconds_ago;
  });
  std::vector<int> not_there;
  for (AwaitedRank& other : awaited) {
    if (!other.missing) continue;
    not_there.push_back(other.rank);
    if (const std::string state = state_of_rank(other.rank); !state.empty())
      other.doing += (other.doing.empty() ? "" : "; ") + state;
  }
  note_flight(FlightEvent::kTimeout, label, not_there);
  const auto list = [&](bool missing) {
    std::string heard;
    std::size_t count = 0;
    for (const AwaitedRank& other : awaited) {
      if (other.missing != missing || ++count > 8) continue;
      heard += (count > 1 ? ", " : "") + name_text(other) + " " + heard_text(other);
    }
    if (count > 8) heard += fmt::format(", … ({} in all)", count);
    return heard;
  };
  const std::string missing = list(true), present = list(false);
  const std::string who = fmt::format("; missing: {}{}{}", missing.empty() ? "nobody" : missing,
                                      present.empty() ? "" : "; there: ", present);
  fail(ExitCode::kLost, "transport", {.rank = rank, .step = label.step, .bucket = label.bucket},
       "rank {} waited {:g} s (sync.timeout_s) on host {} for {}{}", rank, limit_seconds,
       host_name(), what, who);
}

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

void set_rank_processes(std::map<int, int> processes) {
  const std::scoped_lock lock(processes_mutex);
  rank_processes() = std::move(processes);
}

std::string state_of_rank(int rank) {
  int process = 0;
  {
    const std::scoped_lock lock(processes_mutex);
    const auto it = rank_processes().find(rank);
    if (it == rank_processes().end()) return {};
    process = it->second;
  }
  const ProcessState state = process_state(process);
  const auto found = [&](const char* word) {
    FlightRecorder::instance().note(FlightEvent::kFound, {.round = rank}, word);
  };
  switch (state.letter) {
    case '\0': return {};
    case 'T':
    case 't':
      found("stopped");
      return fmt::format("its process {} is stopped, by SIGSTOP or a debugger", process);
    case 'Z':
    case 'X': found("ended"); return fmt::format("its process {} has ended", process);
    default: break;
  }
  if (state.on_disk > 0) {
    found("waits for a disk");
    return fmt::format("{} of its process {}'s threads wait for a disk", state.on_disk, process);
  }
  return fmt::format("its process {} {}", process, state.letter == 'R' ? "computes" : "sleeps");
}

}  // namespace starling
