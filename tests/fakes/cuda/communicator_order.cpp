#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tests/fakes/cuda/race_checker.h"

namespace starling::cuda::shim {
namespace {

/// What one rank issues together that another takes part in.
struct Unit {
  std::vector<std::pair<int, std::string>> parts;  ///< communicator and what; sorted
  std::size_t place = 0;                           ///< of the first
};

/// What a rank's own thread issues; a watchdog's may end communicators.
bool is_issued(const Call& call) {
  return call.kind >= CallKind::kNcclInit && call.kind < CallKind::kNcclDestroy;
}

class Members {
 public:
  explicit Members(const std::vector<std::vector<Call>>& ranks) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (const Call& call : ranks[r]) {
        if (call.kind == CallKind::kNcclInit || call.kind == CallKind::kNcclSplit)
          made_[call.communicator][call.peer] = r;
      }
    }
  }
  /// Both are in it.
  bool share(int communicator, std::size_t a, std::size_t b) const {
    const auto& members = made_.at(communicator);
    const auto in = [&](std::size_t rank) {
      return std::any_of(members.begin(), members.end(),
                         [&](const auto& member) { return member.second == rank; });
    };
    return in(a) && in(b);
  }
  std::size_t rank_of(int communicator, int peer) const { return made_.at(communicator).at(peer); }

 private:
  std::map<int, std::map<int, std::size_t>> made_;  ///< by communicator and rank in it
};

/// What `rank` issues that `other` takes part in, in order.
std::vector<Unit> units_of(const std::vector<Call>& calls, const Members& members, std::size_t rank,
                           std::size_t other) {
  std::vector<Unit> units;
  Unit group;
  int depth = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    int communicator = call.communicator;
    std::string what;
    switch (call.kind) {
      case CallKind::kNcclGroupStart: ++depth; continue;
      case CallKind::kNcclGroupEnd:
        if (depth > 0 && --depth == 0 && !group.parts.empty()) {
          std::sort(group.parts.begin(), group.parts.end());
          units.push_back(std::exchange(group, {}));
        }
        continue;
      case CallKind::kNcclInit: what = "init"; break;
      case CallKind::kNcclSplit:
        what = "split";
        communicator = call.parent;
        break;
      case CallKind::kNcclCollective: what = call.label; break;
      case CallKind::kNcclSend:
      case CallKind::kNcclReceive: {
        if (members.rank_of(communicator, call.peer) != other) continue;
        const bool sends = call.kind == CallKind::kNcclSend;
        what = fmt::format("message from rank {} to rank {}", sends ? rank : other,
                           sends ? other : rank);
        break;
      }
      default: continue;
    }
    const bool message = call.kind == CallKind::kNcclSend || call.kind == CallKind::kNcclReceive;
    if (!message && !members.share(communicator, rank, other)) continue;
    if (group.parts.empty()) group.place = i;
    group.parts.emplace_back(communicator, std::move(what));
    if (depth == 0) units.push_back(std::exchange(group, {}));
  }
  return units;
}

std::string words(const Unit& unit) {
  std::string text;
  for (const auto& [communicator, what] : unit.parts)
    text += fmt::format("{}{} on communicator {}", text.empty() ? "" : ", ", what, communicator);
  return text;
}

/// A thread's calls, with what its graphs hold at each launch in place of the capture.
std::vector<Call> with_launches(const std::vector<Call>& calls) {
  std::vector<Call> result;
  std::map<GraphHandle, std::vector<Call>> graphs;
  std::vector<Call> captured;
  bool capturing = false;
  for (const Call& call : calls) {
    if (capturing && is_issued(call)) {
      captured.push_back(call);
      continue;
    }
    result.push_back(call);
    if (call.kind == CallKind::kBeginCapture) {
      capturing = true;
    } else if (call.kind == CallKind::kEndCapture) {
      capturing = false;
      std::vector<Call> held = std::exchange(captured, {});
      if (call.graph) graphs[call.graph] = std::move(held);
    } else if (call.kind == CallKind::kLaunchGraph) {
      const std::vector<Call>& held = graphs[call.graph];
      result.insert(result.end(), held.begin(), held.end());
    } else if (call.kind == CallKind::kDestroyGraph) {
      graphs.erase(call.graph);
    }
  }
  return result;
}

}  // namespace

std::vector<std::vector<Call>> ranks_of(const std::vector<Call>& calls) {
  std::map<std::uint32_t, std::pair<int, std::vector<Call>>> threads;  // by thread: rank and calls
  std::set<std::uint32_t> users;
  for (const Call& call : calls) {
    auto& [rank, own] = threads[call.thread];
    if (call.kind == CallKind::kNcclInit && !users.contains(call.thread)) rank = call.peer;
    if (is_issued(call)) users.insert(call.thread);
    own.push_back(call);
  }
  std::vector<std::pair<int, std::vector<Call>>> sorted;
  for (const std::uint32_t thread : users) sorted.push_back(std::move(threads[thread]));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::vector<Call>> result;
  for (auto& [rank, own] : sorted) result.push_back(with_launches(own));
  return result;
}

std::vector<Finding> check_communicators(const std::vector<std::vector<Call>>& ranks) {
  const Members members(ranks);
  std::vector<Finding> findings;
  for (std::size_t a = 0; a < ranks.size(); ++a) {
    for (std::size_t b = a + 1; b < ranks.size(); ++b) {
      const std::vector<Unit> left = units_of(ranks[a], members, a, b),
                              right = units_of(ranks[b], members, b, a);
      const auto differs = [&](std::size_t i) {
        return i >= left.size() || i >= right.size() || left[i].parts != right[i].parts;
      };
      std::size_t i = 0;
      while (i < std::max(left.size(), right.size()) && !differs(i)) ++i;
      if (i == std::max(left.size(), right.size())) continue;
      const std::string one = i < left.size() ? words(left[i]) : "nothing more",
                        other = i < right.size() ? words(right[i]) : "nothing more";
      const std::size_t first = i < left.size() ? left[i].place : ranks[a].size(),
                        second = i < right.size() ? right[i].place : ranks[b].size();
      findings.push_back(
          {Finding::Kind::kCommunicatorOrder,
           fmt::format("rank {} issues {} where rank {} issues {} (calls {} and {} of each)", a,
                       one, b, other, first, second),
           first, second, one, other});
    }
  }
  return findings;
}

}  // namespace starling::cuda::shim
