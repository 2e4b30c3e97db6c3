#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "apps/doctor/flight_record.h"

namespace starling {
namespace {

using Ranks = std::vector<int>;

bool contains(const Ranks& ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

bool same_exchange(const FlightPlace& a, const FlightPlace& b) {
  return a.lane == b.lane && a.step == b.step && a.bucket == b.bucket && a.round == b.round;
}

/// Name of an exchange, as errors give it.
std::string exchange_text(const FlightPlace& place) {
  if (place.step < 0) return fmt::format("the mean of tensor {}", place.bucket);
  if (place.bucket < 0) return fmt::format("the numbers of step {}", place.step);
  return fmt::format("the exchange of step {}, bucket {}", place.step, place.bucket);
}

/// Name of a call that all ranks make together.
std::string call_text(const RecordedEvent& event) {
  return fmt::format("{} (call {})", event.what, event.place.round);
}

/// What one rank was doing when its record was written.
struct RankActivity {
  /// An unfinished kWait, kReaders or kCall; null: it was not waiting for ranks
  const RecordedEvent* wait = nullptr;
  const RecordedEvent* load = nullptr;  ///< an unfinished wait for the data loader, or null
  const RecordedEvent* last = nullptr;
  const RecordedEvent* in_test_or_checkpoint = nullptr;  ///< an unfinished test or checkpoint
  std::int64_t step = -1;
  bool first_to_give_up = false;
  Ranks timed_out, lost;  ///< ranks that it reported as late beyond the limit, and as lost
  /// Ranks that it has reported as late during the current wait
  Ranks late;
  /// By rank: the last event about the state of that rank's process as the kernel reports it
  std::map<int, const RecordedEvent*> observed_states;
  /// Name of what it waits for.
  std::string wait_text() const {
    if (wait->event == FlightEvent::kCall) return call_text(*wait);
    if (wait->event == FlightEvent::kReaders)
      return fmt::format("the readers of step {}, bucket {}", wait->place.step - 1,
                         wait->place.bucket);
    return exchange_text(wait->place);
  }
};

/// Time when a rank gave up on others and ended the job; far in the future if it did not.
std::int64_t gave_up_at(const FlightRecord& record) {
  for (const RecordedEvent& event : record.events) {
    if (event.event == FlightEvent::kTimeout || event.event == FlightEvent::kLost) return event.us;
  }
  return INT64_MAX;
}

/// Of events after `end` only observations count: a stopped rank that is resumed still records.
RankActivity activity_of(const FlightRecord& record, std::int64_t end) {
  RankActivity now;
  now.step = record.step;
  for (const RecordedEvent& event : record.events) {
    const bool noticed = event.event == FlightEvent::kTimeout ||
                         event.event == FlightEvent::kLost || event.event == FlightEvent::kFound;
    if (event.us > end && !noticed) continue;
    switch (event.event) {
      case FlightEvent::kStep: now.step = event.place.step; break;
      case FlightEvent::kWait:
      case FlightEvent::kReaders:
      case FlightEvent::kCall:
        now.wait = &event;
        now.late.clear();
        break;
      case FlightEvent::kWaited:
      case FlightEvent::kCalled: now.wait = nullptr; break;
      case FlightEvent::kLoad: now.load = &event; break;
      case FlightEvent::kLoaded: now.load = nullptr; break;
      case FlightEvent::kCheckpoint:
      case FlightEvent::kTest: now.in_test_or_checkpoint = &event; break;
      case FlightEvent::kSaved:
      case FlightEvent::kTested: now.in_test_or_checkpoint = nullptr; break;
      case FlightEvent::kTimeout:
        now.timed_out = event.ranks;
        now.first_to_give_up = event.us <= end;
        continue;
      case FlightEvent::kLost:
        now.lost.insert(now.lost.end(), event.ranks.begin(), event.ranks.end());
        continue;
      case FlightEvent::kFound:
        now.observed_states[static_cast<int>(event.place.round)] = &event;
        continue;
      case FlightEvent::kLate:
        now.late.insert(now.late.end(), event.ranks.begin(), event.ranks.end());
        continue;
      default: break;
    }
    now.last = &event;
  }
  return now;
}

std::string clock_text(std::int64_t us) {
  const std::time_t seconds = us / 1'000'000;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:%H:%M:%S}.{:03}", local, us / 1000 % 1000);
}

/// "rank 1", "ranks 1 and 2", "ranks 0, 1 and 3".
std::string names(const Ranks& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == 12 && ranks.size() > 13) return text + fmt::format(" and {} more", ranks.size() - i);
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return text;
}
const char* verb(const Ranks& ranks, const char* one, const char* several) {
  return ranks.size() == 1 ? one : several;
}

/// Two ranks that issued different operations.
struct Divergence {
  std::int64_t us = 0;
  std::string text;
};

class Blame {
 public:
  explicit Blame(const FlightRecords& records) : records_(records) {
    for (const auto& record : records.by_rank) {
      if (record) gave_up_ = std::min(gave_up_, gave_up_at(*record));
    }
    for (const auto& record : records.by_rank) {
      activities_.push_back(record ? activity_of(*record, gave_up_) : RankActivity());
      if (record) end_ = std::max(end_, record->us);
    }
    for (int i = 0; i < ranks(); ++i) {
      if (!record(i)) missing_.push_back(i);
      if (record(i) && at(i).wait) culprits_[i] = culprits_of(i);
    }
    divergence_ = find_divergence();
  }

  std::string text() const { return waits() + "\n" + cause() + "\n" + order() + "\n"; }

 private:
  int ranks() const { return static_cast<int>(records_.by_rank.size()); }
  const FlightRecord* record(int rank) const {
    const auto& of = records_.by_rank[static_cast<std::size_t>(rank)];
    return of ? &*of : nullptr;
  }
  const RankActivity& at(int rank) const { return activities_[static_cast<std::size_t>(rank)]; }
  double age(std::int64_t us) const {
    return 1e-6 * static_cast<double>(std::max<std::int64_t>(end_ - us, 0));
  }
  std::string since(std::int64_t us) const {
    return fmt::format("since {}, {:.3g} s before the last record", clock_text(us), age(us));
  }

  /// All ranks that an event involves, even if the recorder stored only some of them.
  Ranks partners(int rank, const RecordedEvent& event) const {
    Ranks all = event.ranks;
    if (event.event == FlightEvent::kCall || event.rank_count >= ranks() - 1) {
      all.clear();
      for (int i = 0; i < ranks(); ++i) {
        if (i != rank) all.push_back(i);
      }
    }
    std::erase_if(all, [&](int i) { return i < 0 || i >= ranks(); });
    return all;
  }
  bool is_partner(int rank, const RecordedEvent& event, int other) const {
    return contains(partners(rank, event), other);
  }

  /// Whether the record of rank `other` shows that it has done what `rank` waits for.
  bool has_done_its_part(int rank, const RecordedEvent& wait, int other) const {
    for (const RecordedEvent& event : record(other)->events) {
      if (event.us > gave_up_) break;
      switch (wait.event) {
        case FlightEvent::kCall:
          if (event.event == FlightEvent::kCall && event.place.round >= wait.place.round)
            return true;
          break;
        case FlightEvent::kReaders:
          if (event.event == FlightEvent::kPublished && event.place.bucket == wait.place.bucket &&
              event.place.step >= wait.place.step - 1)
            return true;
          break;
        default:
          if (event.event == FlightEvent::kStart && same_exchange(event.place, wait.place) &&
              is_partner(other, event, rank))
            return true;
      }
    }
    // Exchanges outside of steps (lane 0 is the steps') may begin in different steps on different
    // ranks, so only a rank that does not wait can be behind.
    return wait.place.lane != 0 && at(other).wait;
  }

  /// Ranks that `rank` waits for and that have not done their part.
  Ranks culprits_of(int rank) const {
    const RecordedEvent& wait = *at(rank).wait;
    Ranks found;
    for (const int other : partners(rank, wait)) {
      if (!record(other) || !has_done_its_part(rank, wait, other)) found.push_back(other);
    }
    // All have started it: then the rank itself knows best whose message is missing. A process that
    // was stopped also gives up when it resumes, but has not reported anyone as late before.
    if (!found.empty()) return found;
    if (at(rank).first_to_give_up) return at(rank).timed_out;
    for (const int late : at(rank).late) {
      if (is_partner(rank, wait, late) && !contains(found, late)) found.push_back(late);
    }
    return found;
  }

  std::string waits() const {
    std::map<std::tuple<Ranks, std::string>, std::pair<Ranks, std::int64_t>> groups;
    // A wait for something that all have started is only reported if nothing else is wrong.
    const bool some_to_blame =
        std::ranges::any_of(culprits_, [](const auto& entry) { return !entry.second.empty(); });
    for (const auto& [rank, culprits] : culprits_) {
      if (some_to_blame && culprits.empty()) continue;
      const Ranks& for_whom = culprits.empty() ? partners(rank, *at(rank).wait) : culprits;
      auto& [waiting, begin] = groups[{for_whom, at(rank).wait_text()}];
      begin = waiting.empty() ? at(rank).wait->us : std::min(begin, at(rank).wait->us);
      waiting.push_back(rank);
    }
    if (groups.empty()) return "waits: no rank waits for another";
    std::vector<std::pair<std::int64_t, std::string>> lines;
    for (const auto& [key, group] : groups) {
      const auto& [for_whom, what] = key;
      lines.emplace_back(group.second, fmt::format("{} {} for {} {} ({})", names(group.first),
                                                   verb(group.first, "waits", "wait"),
                                                   names(for_whom), since(group.second), what));
    }
    std::ranges::sort(lines);
    std::string text = "waits: " + lines.front().second;
    for (std::size_t i = 1; i < std::min<std::size_t>(lines.size(), 6); ++i)
      text += "; " + lines[i].second;
    if (lines.size() > 6) text += fmt::format("; and {} more waits", lines.size() - 6);
    return text;
  }

  /// Ranks that failed on their own, in order of time; not those that noticed another's loss.
  Ranks failed_by_themselves() const {
    Ranks found;
    for (int i = 0; i < ranks(); ++i) {
      if (!record(i)) continue;
      const std::string& reason = record(i)->reason;
      if (reason == "crash" ||
          (reason == "error" && at(i).timed_out.empty() && at(i).lost.empty() &&
           record(i)->exit != static_cast<int>(ExitCode::kLost))) {
        found.push_back(i);
      }
    }
    std::ranges::sort(found, {}, [&](int rank) { return record(rank)->us; });
    return found;
  }

  /// What others observed of a rank's process: "stopped, as rank 0 saw; ". Not after the rank
  /// itself has given up: it then waits for the disk because it writes its record.
  std::string observed_state(int rank) const {
    for (int i = 0; i < ranks(); ++i) {
      const auto it = at(i).observed_states.find(rank);
      if (it == at(i).observed_states.end() ||
          (record(rank) && it->second->us >= gave_up_at(*record(rank))))
        continue;
      return fmt::format("{}, as rank {} saw; ", it->second->what, i);
    }
    return {};
  }

  /// Whether a rank's record was written on request before its end.
  bool written_on_request(int rank) const { return record(rank)->reason == "asked"; }

  /// Those that have not done what a rank waits for; none where it does not wait.
  Ranks awaited_by(int rank) const {
    const auto it = culprits_.find(rank);
    return it == culprits_.end() ? Ranks() : it->second;
  }

  /// What a rank was doing, if it was not waiting for others.
  std::string doing(int rank) const {
    const RankActivity& now = at(rank);
    const std::string step =
        at(rank).step >= 0 ? fmt::format("in step {}", at(rank).step) : "before its first step";
    if (now.load)
      return fmt::format("{} it waits for its data loader {}", step, since(now.load->us));
    if (now.wait)
      return fmt::format("{} it waits {} for {}{}", step, since(now.wait->us), now.wait_text(),
                         awaited_by(rank).empty() ? ", which all other ranks have started" : "");
    if (!now.last) return "it has recorded nothing";
    std::string what(event_name(now.last->event));
    if (now.last->place.bucket >= 0) what += fmt::format(" of bucket {}", now.last->place.bucket);
    const char* where = !now.in_test_or_checkpoint ? ""
                        : now.in_test_or_checkpoint->event == FlightEvent::kTest
                            ? ", in a test"
                            : ", in a checkpoint";
    return fmt::format("{}{} it is not waiting for another rank; its last event is \"{}\" {}", step,
                       where, what, since(now.last->us));
  }

  std::string cause() const {
    if (const Ranks failed = failed_by_themselves(); !failed.empty()) {
      const FlightRecord& first = *record(failed.front());
      return fmt::format("cause: rank {} on host {} {} at {}: {}", first.rank, first.host,
                         first.reason == "crash" ? "crashed" : "failed", clock_text(first.us),
                         first.text);
    }
    std::set<int> lost, blamed;
    std::map<int, Ranks> seen_by;
    for (int i = 0; i < ranks(); ++i) {
      for (const int other : at(i).lost) {
        lost.insert(other);
        seen_by[other].push_back(i);
      }
    }
    for (const auto& [rank, culprits] : culprits_) blamed.insert(culprits.begin(), culprits.end());
    if (const std::string cut = cut_network(seen_by); !cut.empty()) return cut;
    if (!lost.empty()) {
      const int first = *lost.begin();
      return fmt::format(
          "cause: {} ended or went silent, as {} noticed, and {}",
          names({lost.begin(), lost.end()}), names(seen_by[first]),
          !record(first) ? "left no record: killed, or out of memory, or its host is gone"
          : written_on_request(first)
              ? "left no record of its end: killed, or out of memory, or its host is gone"
              : "its record says: " + record(first)->text);
    }
    Ranks gone, unread;
    for (const int rank : missing_) {
      if (blamed.contains(rank) || blamed.empty())
        (contains(records_.broken, rank) ? unread : gone).push_back(rank);
    }
    if (!gone.empty()) {
      return fmt::format(
          "cause: {} left no record: {}probably killed or stopped, or {} host is gone", names(gone),
          observed_state(gone.front()), verb(gone, "its", "their"));
    }
    if (!unread.empty())
      return fmt::format("cause: unknown: the record of {} is damaged", names(unread));
    Ranks roots, in_waits;
    for (const int rank : blamed) {
      if (!at(rank).wait) roots.push_back(rank);
      if (culprits_.contains(rank) && awaited_by(rank).empty()) in_waits.push_back(rank);
    }
    const auto by = [&](int rank) {
      return fmt::format("cause: rank {}: {}{}", rank, observed_state(rank), doing(rank));
    };
    const auto odd =
        std::ranges::find_if(blamed, [&](int rank) { return !observed_state(rank).empty(); });
    if (odd != blamed.end()) return by(*odd);
    if (!roots.empty()) return by(roots.front());
    if (const Ranks circle = find_cycle(); circle.size() > 1)
      return fmt::format(
          "cause: {} wait for each other{}", names(circle),
          divergence_ ? ", because they issued different operations"
                      : ", although each has started its side: check the network between them");
    if (!in_waits.empty()) return by(in_waits.front());
    if (!culprits_.empty() && divergence_)
      return fmt::format("cause: {} wait for operations that other ranks issued in another order",
                         names(waiting_ranks()));
    if (!culprits_.empty()) {
      return fmt::format(
          "cause: all of {} have started what they wait for: check the network between them, and "
          "look for slow ranks",
          names(waiting_ranks()));
    }
    for (int i = 0; i < ranks(); ++i) {
      if (record(i) && record(i)->reason == "error")
        return fmt::format("cause: rank {} on host {} failed at {}: {}", i, record(i)->host,
                           clock_text(record(i)->us), record(i)->text);
    }
    for (int i = 0; i < ranks(); ++i) {
      if (record(i) && at(i).load) return fmt::format("cause: rank {}: {}", i, doing(i));
    }
    return missing_.empty()
               ? "cause: none, nothing went wrong"
               : fmt::format("cause: {} left no record that can be read", names(missing_));
  }
  /// Diagnoses a network failure: all ranks that were reported lost kept running and reported
  /// others, so messages between the two sides did not arrive. A disconnected host is in every such
  /// pair. Empty if one of the lost ranks ended. `lost`: for each lost rank, who reported it.
  std::string cut_network(const std::map<int, Ranks>& lost) const {
    std::set<std::string> hosts;  // hosts that are in every pair
    Ranks witnesses;
    for (const auto& [rank, seen_by] : lost) {
      if (!record(rank) || written_on_request(rank) || !observed_state(rank).empty() ||
          (at(rank).lost.empty() && at(rank).timed_out.empty()))
        return {};
      for (const int other : seen_by) {
        const std::set<std::string> pair{record(rank)->host, record(other)->host};
        if (pair.size() < 2) return {};
        if (witnesses.empty()) hosts = pair;
        std::erase_if(hosts, [&](const std::string& host) { return pair.count(host) == 0; });
        witnesses.push_back(other);
      }
    }
    if (witnesses.empty()) return {};
    std::ranges::sort(witnesses);
    witnesses.erase(std::unique(witnesses.begin(), witnesses.end()), witnesses.end());
    const std::string where = hosts.empty() ? "between several hosts"
                              : hosts.size() == 1
                                  ? "between host " + *hosts.begin() + " and the others"
                                  : fmt::format("between hosts {}", fmt::join(hosts, " and "));
    return fmt::format(
        "cause: the network {}: {} lost contact with ranks that kept running; check cables, "
        "switches and firewalls",
        where, names(witnesses));
  }

  Ranks waiting_ranks() const {
    Ranks all;
    for (const auto& [rank, culprits] : culprits_) all.push_back(rank);
    return all;
  }

  /// Ranks that wait for each other: two, or the cycle that the first waiting rank's waits lead to.
  Ranks find_cycle() const {
    Ranks path;
    for (const auto& [rank, culprits] : culprits_) {
      for (const int other : culprits) {
        if (contains(awaited_by(other), rank))
          return {std::min(rank, other), std::max(rank, other)};
      }
      if (path.empty() && !culprits.empty()) path = {rank};
    }
    while (!path.empty()) {
      const Ranks awaited = awaited_by(path.back());
      if (awaited.empty()) return {};
      const auto before = std::ranges::find(path, awaited.front());
      if (before != path.end()) {
        path.erase(path.begin(), before);
        break;
      }
      path.push_back(awaited.front());
    }
    std::ranges::sort(path);
    return path;
  }

  std::vector<const RecordedEvent*> exchanges_between(int rank, int other) const {
    std::vector<const RecordedEvent*> found;
    for (const RecordedEvent& event : record(rank)->events) {
      if (event.event == FlightEvent::kStart && event.place.lane == 0 &&
          is_partner(rank, event, other))
        found.push_back(&event);
    }
    // The first exchange in an overwritten ring may be the second of several with the same label.
    const bool cut = !record(rank)->events.empty() && record(rank)->events.front().number > 0;
    if (cut && !found.empty()) {
      const FlightPlace first = found.front()->place;
      found.erase(found.begin(), std::ranges::find_if(found, [&](const auto* e) {
                    return !same_exchange(e->place, first);
                  }));
    }
    return found;
  }

  std::optional<Divergence> compare_exchanges(int i, int j) const {
    const auto mine = exchanges_between(i, j), theirs = exchanges_between(j, i);
    if (mine.empty() || theirs.empty()) return std::nullopt;
    const auto find = [](const auto& list, const RecordedEvent* like) {
      return static_cast<std::size_t>(
          std::ranges::find_if(
              list, [&](const auto* e) { return same_exchange(e->place, like->place); }) -
          list.begin());
    };
    std::size_t a = 0, b = find(theirs, mine.front());
    if (b == theirs.size()) {
      b = 0;
      a = find(mine, theirs.front());
    }
    const bool from_the_start =
        record(i)->events.front().number == 0 && record(j)->events.front().number == 0;
    if (a == mine.size()) {
      if (!from_the_start)
        return std::nullopt;  // no overlap: one is more than a whole record behind
      a = b = 0;
    }
    for (; a < mine.size() && b < theirs.size(); ++a, ++b) {
      if (same_exchange(mine[a]->place, theirs[b]->place)) continue;
      return Divergence{
          std::max(mine[a]->us, theirs[b]->us),
          fmt::format("{}rank {} issued {} where rank {} issued {}",
                      a > 0 ? fmt::format("after {} ", exchange_text(mine[a - 1]->place)) : "", i,
                      exchange_text(mine[a]->place), j, exchange_text(theirs[b]->place))};
    }
    return std::nullopt;
  }

  std::optional<Divergence> compare_calls(int i, int j) const {
    std::map<std::int64_t, const RecordedEvent*> calls;
    for (const RecordedEvent& event : record(i)->events) {
      if (event.event == FlightEvent::kCall) calls[event.place.round] = &event;
    }
    for (const RecordedEvent& event : record(j)->events) {
      if (event.event != FlightEvent::kCall) continue;
      const auto it = calls.find(event.place.round);
      if (it == calls.end() || it->second->what == event.what) continue;
      return Divergence{std::max(event.us, it->second->us),
                        fmt::format("rank {} called {} where rank {} called {}", i,
                                    call_text(*it->second), j, call_text(event))};
    }
    return std::nullopt;
  }

  std::optional<Divergence> find_divergence() const {
    std::optional<Divergence> first;
    for (int i = 0; i < ranks(); ++i) {
      for (int j = i + 1; j < ranks(); ++j) {
        if (!record(i) || !record(j)) continue;
        for (const auto& found : {compare_exchanges(i, j), compare_calls(i, j)})
          if (found && (!first || found->us < first->us)) first = found;
      }
    }
    if (first) return first;
    // Two ranks that wait for each other, one in a call and one in an exchange.
    for (const auto& [i, culprits] : culprits_) {
      for (const int j : culprits) {
        if (!contains(awaited_by(j), i)) continue;
        if (at(i).wait->event == at(j).wait->event && at(i).wait_text() == at(j).wait_text())
          continue;
        const auto verb_of = [&](int rank) {
          return at(rank).wait->event == FlightEvent::kCall ? "called" : "waits for";
        };
        return Divergence{at(i).wait->us,
                          fmt::format("rank {} {} {} where rank {} {} {}", i, verb_of(i),
                                      at(i).wait_text(), j, verb_of(j), at(j).wait_text())};
      }
    }
    return first;
  }

  std::string order() const {
    std::string note = missing_.empty() ? "" : fmt::format("; no record of {}", names(missing_));
    if (divergence_)
      return fmt::format("order: ranks diverge at {}: {}{}", clock_text(divergence_->us),
                         divergence_->text, note);
    std::int64_t least = INT64_MAX, most = -1;
    Ranks behind, ahead;
    for (int i = 0; i < ranks(); ++i) {
      if (!record(i)) continue;
      const std::int64_t step = at(i).step;
      if (step < least) behind.clear();
      if (step > most) ahead.clear();
      least = std::min(least, step);
      most = std::max(most, step);
      if (step == least) behind.push_back(i);
      if (step == most) ahead.push_back(i);
    }
    if (least == most)
      return fmt::format("order: all ranks issued the same, and {}{}",
                         most < 0 ? "none has begun a step" : fmt::format("are in step {}", most),
                         note);
    return fmt::format("order: all ranks issued the same; {} {} in step {}, {} in step {}{}",
                       names(behind), verb(behind, "is", "are"), least, names(ahead), most, note);
  }

  const FlightRecords& records_;
  std::vector<RankActivity> activities_;
  /// Time of the last record, and of the first rank that gave up on others
  std::int64_t end_ = 0, gave_up_ = INT64_MAX;
  Ranks missing_;
  /// For each waiting rank, the ranks that have not done what it waits for
  std::map<int, Ranks> culprits_;
  std::optional<Divergence> divergence_;
};

}  // namespace

std::string start_text(const FlightRecords& records) {
  const std::int64_t us = records.start > 0 ? records.start : records.last;
  const std::time_t seconds = us / 1'000'000;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format(
      "records of {} {:%Y-%m-%d} {}{}{}", records.start > 0 ? "the run started" : "the run of",
      local, clock_text(us), records.not_newest ? "; the newest start left no record" : "",
      records.earlier.empty()
          ? ""
          : fmt::format("; ignored, from earlier starts: {}", names(records.earlier)));
}

std::string blame(const FlightRecords& records) { return Blame(records).text(); }

}  // namespace starling
