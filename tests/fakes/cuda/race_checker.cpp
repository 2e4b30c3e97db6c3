#include "tests/fakes/cuda/race_checker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace starling::cuda::shim {
namespace {

/// How far each agent (a stream, or the thread that owns streams) had come when something happened:
/// what came before it in the order.
class Clock {
 public:
  std::uint64_t operator[](std::size_t agent) const {
    return agent < times_.size() ? times_[agent] : 0;
  }
  std::uint64_t tick(std::size_t agent) {
    if (agent >= times_.size()) times_.resize(agent + 1);
    return ++times_[agent];
  }
  void join(const Clock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (std::size_t i = 0; i < other.times_.size(); ++i)
      times_[i] = std::max(times_[i], other.times_[i]);
  }

 private:
  std::vector<std::uint64_t> times_;
};

struct Access {
  std::size_t agent = 0;
  std::uint64_t time = 0;
  std::size_t call = 0;
  bool write = false;
  const void* begin = nullptr;
  std::size_t bytes = 0;
  std::string name;
  bool own_memory = false;
};

/// Bytes that have had the same accesses. What is dropped (before a write, and an agent's own
/// earlier read) is ordered before what stays.
struct Piece {
  std::uintptr_t end = 0;
  std::size_t write = kNone;  ///< the last; places in Walk::accesses_
  std::vector<std::size_t> reads;
  bool given_back = false;
  std::size_t given_back_by = 0;
  static constexpr std::size_t kNone = ~std::size_t{0};
};

class Walk {
 public:
  std::vector<Finding> run(const std::vector<Call>& calls) {
    for (place_ = 0; place_ < calls.size(); ++place_) step(calls[place_]);
    return std::move(findings_);
  }

 private:
  using Kind = Finding::Kind;
  struct Agent {
    std::string name;
    std::size_t host = 0;  ///< the thread that made it
    Clock clock;
  };

  void step(const Call& call);
  void step_nccl(const Call& call);
  void carry_out(const Call& call);
  void finish_group(const std::vector<Call>& group);
  void follow_nccl(std::uint32_t thread, std::size_t agent, const std::set<int>& communicators);
  bool step_capture(const Call& call);
  void end_capture(const Call& call);
  void launch(const Call& call);
  void wait(const Call& call, std::size_t agent);
  void await(const Call& call, std::size_t agent);
  void take(const Call& call);
  void give_back(const Call& call);

  std::size_t host(std::uint32_t thread) {
    const auto [it, added] = hosts_.emplace(thread, agents_.size());
    if (added) agents_.push_back({"the host", agents_.size(), {}});
    return it->second;
  }
  std::size_t stream(const Call& call) {
    const auto it = streams_.find(call.stream);
    if (it != streams_.end()) return it->second;
    const std::size_t owner = host(call.thread);
    streams_.emplace(call.stream, agents_.size());
    agents_.push_back({call.kind == CallKind::kCreateStream
                           ? "stream " + call.label
                           : fmt::format("stream {}", fmt::ptr(call.stream)),
                       owner,
                       {}});
    return agents_.size() - 1;
  }
  /// Where a call's work runs, after what the host has done so far.
  std::size_t issue(const Call& call) {
    if (!call.stream) return host(call.thread);
    const std::size_t agent = stream(call), issuer = host(call.thread);
    agents_[issuer].clock.tick(issuer);
    agents_[agent].clock.join(agents_[issuer].clock);
    return agent;
  }

  void access(std::size_t agent, const std::string& name, const void* begin, std::size_t bytes,
              bool write, bool own_memory = false);
  /// Of pinned memory, which may be another thread's: what any thread has waited for counts.
  void host_access(std::size_t agent, const void* begin, std::size_t bytes, bool write) {
    const Clock own = agents_[agent].clock;
    agents_[agent].clock.join(known_done_);
    access(agent, "host", begin, bytes, write, true);
    const std::uint64_t now = agents_[agent].clock[agent];
    agents_[agent].clock = own;
    while (agents_[agent].clock[agent] < now) agents_[agent].clock.tick(agent);
  }
  template <class F>
  void each_piece(const void* begin, std::size_t bytes, const F& f);
  bool before(std::size_t access, const Clock& clock) const {
    return clock[accesses_[access].agent] >= accesses_[access].time;
  }

  std::string words(const Access& a) const {
    return fmt::format("'{}' on {} {} {} bytes at {}", a.name, agents_[a.agent].name,
                       a.write ? "writes" : "reads", a.bytes, fmt::ptr(a.begin));
  }
  void found(Kind kind, std::size_t first, std::string text, std::string one, std::string other) {
    if (!known_.emplace(kind, first, place_, one, other).second) return;
    findings_.push_back({kind, fmt::format("{} (calls {} and {})", text, first, place_), first,
                         place_, std::move(one), std::move(other)});
  }

  std::size_t place_ = 0;
  std::vector<Agent> agents_;
  std::map<std::uint32_t, std::size_t> hosts_;
  std::map<StreamHandle, std::size_t> streams_;
  std::map<std::pair<EventHandle, std::uint64_t>, Clock> recordings_;
  /// Of a counter, in their order
  std::map<const void*, std::vector<std::pair<std::uint32_t, Clock>>> signals_;
  /// What any thread has waited for
  Clock known_done_;
  /// Made within the record
  std::set<EventHandle> events_;
  std::map<const void*, std::size_t> blocks_;
  std::map<std::uintptr_t, Piece> pieces_;  ///< by begin; they do not overlap
  std::vector<Access> accesses_;
  /// What a thread captures: done by launches alone, so it is walked by itself, and each launch
  /// does all that it touches.
  struct Captured {
    std::vector<std::pair<std::size_t, Call>> calls;  ///< with their places
    std::set<StreamHandle> streams;
    std::set<std::pair<EventHandle, std::uint64_t>> events;
  };
  std::map<std::uint32_t, Captured> graph_captures_;  ///< under way, by thread
  std::map<GraphHandle, std::vector<Access>> graphs_;
  /// Blocks taken within a capture: begin and end
  std::map<std::uintptr_t, std::uintptr_t> graph_memory_;
  struct Group {
    int depth = 0;
    std::vector<Call> calls;
  };
  std::map<std::uint32_t, Group> groups_;  ///< of NCCL, by thread
  struct NcclWork {
    std::size_t agent = 0;
    std::uint64_t time = 0;
    std::size_t call = 0;
    std::set<int> communicators;
  };
  std::map<std::uint32_t, NcclWork> last_nccl_;  ///< by thread
  /// That a launch issues operations of
  std::map<GraphHandle, std::set<int>> graph_communicators_;
  std::set<std::tuple<Kind, std::size_t, std::size_t, std::string, std::string>> known_;
  std::vector<Finding> findings_;
};

/// Calls f for pieces that cover the bytes exactly.
template <class F>
void Walk::each_piece(const void* begin, std::size_t bytes, const F& f) {
  auto from = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t end = from + bytes;
  const auto split = [&](std::uintptr_t at) {
    auto it = pieces_.upper_bound(at);
    if (it == pieces_.begin() || std::prev(it)->first == at || std::prev(it)->second.end <= at)
      return;
    Piece& left = std::prev(it)->second;
    Piece right = left;
    left.end = at;
    pieces_.emplace(at, std::move(right));
  };
  split(from);
  split(end);
  while (from < end) {
    auto it = pieces_.lower_bound(from);
    if (it == pieces_.end() || it->first > from) {
      const std::uintptr_t gap_end = it == pieces_.end() ? end : std::min(end, it->first);
      it = pieces_.emplace(from, Piece{.end = gap_end, .reads = {}}).first;
    }
    f(it->second);
    from = it->second.end;
  }
}

/// `own_memory`: what the backend's own scratch memory may be, whose coming and going is not noted.
void Walk::access(std::size_t agent, const std::string& name, const void* begin, std::size_t bytes,
                  bool write, bool own_memory) {
  if (bytes == 0) return;
  Clock& clock = agents_[agent].clock;
  const std::size_t id = accesses_.size();
  accesses_.push_back({agent, clock.tick(agent), place_, write, begin, bytes, name, own_memory});
  each_piece(begin, bytes, [&](Piece& piece) {
    const auto check = [&](std::size_t earlier) {
      if (before(earlier, clock)) return;
      const Access &a = accesses_[earlier], &b = accesses_[id];
      found(Kind::kRace, a.call, fmt::format("{}; {}; nothing orders the two", words(a), words(b)),
            a.name, b.name);
    };
    if (piece.given_back && !own_memory) {
      found(Kind::kFreedMemory, piece.given_back_by,
            words(accesses_[id]) + ", which the pool has got back", "give back", name);
    }
    if (piece.write != Piece::kNone) check(piece.write);
    if (write) {
      for (const std::size_t read : piece.reads) check(read);
      piece.write = id;
      piece.reads.clear();
    } else {
      std::erase_if(piece.reads, [&](std::size_t read) { return accesses_[read].agent == agent; });
      piece.reads.push_back(id);
    }
  });
}

void Walk::wait(const Call& call, std::size_t agent) {
  const auto it = recordings_.find({call.event, call.recording});
  if (it != recordings_.end()) return agents_[agent].clock.join(it->second);
  // recorded before the record begins
  if (call.recording != 0 && !events_.contains(call.event)) return;
  found(Kind::kUnrecordedEvent, place_,
        fmt::format("{} waits for an event that was never recorded", agents_[agent].name), "wait",
        agents_[agent].name);
}

/// A counter only grows: the first signal that brought it so far is what was waited for, and those
/// before it are its stream's own.
void Walk::await(const Call& call, std::size_t agent) {
  for (const auto& [value, clock] : signals_[call.from]) {
    if (static_cast<std::int32_t>(value - static_cast<std::uint32_t>(call.recording)) < 0) continue;
    agents_[agent].clock.join(clock);
    return;
  }
}

/// The pool's rule: work on `stream` that is issued from now on comes after all that used the block
/// before.
void Walk::take(const Call& call) {
  const std::size_t agent = stream(call);
  Clock clock = agents_[agent].clock;
  clock.join(agents_[agents_[agent].host].clock);
  each_piece(call.to, call.bytes, [&](Piece& piece) {
    const auto used = [&](std::size_t earlier) {
      if (before(earlier, clock)) return false;
      const Access& a = accesses_[earlier];
      found(Kind::kReusedMemory, a.call,
            fmt::format(
                "{}; the pool gives these bytes out again for {}, which is not told to wait for it",
                words(a), agents_[agent].name),
            a.name, agents_[agent].name);
      return true;
    };
    if (piece.write != Piece::kNone && used(piece.write)) piece.write = Piece::kNone;
    std::erase_if(piece.reads, used);
    piece.given_back = false;
  });
}

void Walk::give_back(const Call& call) {
  each_piece(call.to, call.bytes, [&](Piece& piece) {
    piece.given_back = true;
    piece.given_back_by = place_;
  });
}

void Walk::carry_out(const Call& call) {
  const std::size_t agent = issue(call);
  switch (call.kind) {
    case CallKind::kRead: access(agent, call.label, call.from, call.bytes, false); break;
    case CallKind::kWrite: access(agent, call.label, call.to, call.bytes, true); break;
    case CallKind::kSet: access(agent, "fill", call.to, call.bytes, true, true); break;
    case CallKind::kCopy: {
      const std::size_t issuer = host(call.thread);
      if (call.copy == CopyKind::kHostToDevice) host_access(issuer, call.from, call.bytes, true);
      if (call.copy == CopyKind::kDeviceToHost) host_access(issuer, call.to, call.bytes, false);
      agents_[agent].clock.join(agents_[issuer].clock);
      const std::string name = call.copy == CopyKind::kHostToDevice   ? "copy to the device"
                               : call.copy == CopyKind::kDeviceToHost ? "copy to the host"
                                                                      : "copy";
      access(agent, name, call.from, call.bytes, false, true);
      access(agent, name, call.to, call.bytes, true, true);
      break;
    }
    case CallKind::kNcclSend: access(agent, "send", call.from, call.bytes, false); break;
    case CallKind::kNcclReceive: access(agent, "receive", call.to, call.bytes, true); break;
    case CallKind::kNcclCollective:
      access(agent, call.label, call.from, call.bytes, false);
      access(agent, call.label, call.to, call.bytes_to != 0 ? call.bytes_to : call.bytes, true);
      break;
    default: break;
  }
}

/// What a thread issues next to its device. NCCL orders operations of one communicator, whatever
/// streams they are on; of two, each may hold what the other one waits for on another device.
void Walk::follow_nccl(std::uint32_t thread, std::size_t agent,
                       const std::set<int>& communicators) {
  Clock& clock = agents_[agent].clock;
  const auto last = last_nccl_.find(thread);
  if (last != last_nccl_.end() && last->second.communicators != communicators &&
      clock[last->second.agent] < last->second.time) {
    const std::string one = fmt::format("communicator {}",
                                        fmt::join(last->second.communicators, ", ")),
                      other = fmt::format("communicator {}", fmt::join(communicators, ", "));
    found(Kind::kCommunicatorOrder, last->second.call,
          fmt::format("an operation of {} on {}; one of {} on {}; nothing orders the two", one,
                      agents_[last->second.agent].name, other, agents_[agent].name),
          one, other);
  }
  last_nccl_[thread] = {agent, clock.tick(agent), place_, communicators};
}

/// The members of a group run at once.
void Walk::finish_group(const std::vector<Call>& group) {
  const auto overlap = [](const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
    const auto from = reinterpret_cast<std::uintptr_t>(a), to = reinterpret_cast<std::uintptr_t>(b);
    return from < to + b_bytes && to < from + a_bytes;
  };
  const auto name = [](const Call& call) {
    return call.kind == CallKind::kNcclSend      ? std::string("send")
           : call.kind == CallKind::kNcclReceive ? "receive"
                                                 : call.label;
  };
  const auto written = [](const Call& call) {
    return call.bytes_to != 0 ? call.bytes_to : call.bytes;
  };
  for (const Call& writer : group) {
    if (!writer.to) continue;
    for (const Call& other : group) {
      if (&other == &writer) continue;
      const bool reads = other.from && overlap(writer.to, written(writer), other.from, other.bytes);
      const bool writes = other.to && &other < &writer &&
                          overlap(writer.to, written(writer), other.to, written(other));
      if (!reads && !writes) continue;
      found(Kind::kRace, place_,
            fmt::format("'{}' writes {} bytes at {}, which '{}' of the same group {}", name(writer),
                        written(writer), fmt::ptr(writer.to), name(other),
                        reads ? "reads" : "writes"),
            name(writer), name(other));
    }
  }
  if (!group.empty()) {
    std::set<int> communicators;
    for (const Call& call : group) communicators.insert(call.communicator);
    follow_nccl(group.front().thread, issue(group.front()), communicators);
  }
  for (const Call& call : group) carry_out(call);
}

void Walk::step_nccl(const Call& call) {
  Group& group = groups_[call.thread];
  if (call.kind == CallKind::kNcclGroupStart) {
    ++group.depth;
  } else if (call.kind == CallKind::kNcclGroupEnd) {
    if (group.depth > 0 && --group.depth == 0) finish_group(std::exchange(group.calls, {}));
  } else if (group.depth > 0) {
    group.calls.push_back(call);
  } else {
    finish_group({call});
  }
}

/// Whether the call is captured.
bool Walk::step_capture(const Call& call) {
  const auto it = graph_captures_.find(call.thread);
  if (it == graph_captures_.end()) return false;
  Captured& captured = it->second;
  const std::pair event(call.event, call.recording);
  if (call.kind == CallKind::kWait && captured.events.contains(event))
    captured.streams.insert(call.stream);
  if (call.kind == CallKind::kTake || call.kind == CallKind::kGiveBack) {
    const auto begin = reinterpret_cast<std::uintptr_t>(call.to);
    if (call.kind == CallKind::kTake)
      graph_memory_[begin] = std::max(graph_memory_[begin], begin + call.bytes);
    each_piece(call.to, call.bytes, [&](Piece& piece) {
      piece.given_back = call.kind == CallKind::kGiveBack;
      piece.given_back_by = place_;
    });
  } else if (call.kind != CallKind::kNcclGroupStart && call.kind != CallKind::kNcclGroupEnd &&
             (!call.stream || !captured.streams.contains(call.stream) ||
              call.kind == CallKind::kHostWait || call.kind == CallKind::kEndCapture)) {
    return false;
  }
  if (call.kind == CallKind::kRecord) captured.events.insert(event);
  captured.calls.emplace_back(place_, call);
  return true;
}

void Walk::end_capture(const Call& call) {
  const auto it = graph_captures_.find(call.thread);
  if (it == graph_captures_.end()) return;
  const Captured captured = std::move(it->second);
  graph_captures_.erase(it);
  if (!call.graph) return;
  Walk inner;
  for (const auto& [handle, agent] : streams_) {
    const std::size_t owner = inner.host(call.thread);
    inner.streams_.emplace(handle, inner.agents_.size());
    inner.agents_.push_back({agents_[agent].name, owner, {}});
  }
  for (const auto& [place, inside] : captured.calls) {
    inner.place_ = place;
    inner.step(inside);
  }
  for (Finding& finding : inner.findings_) findings_.push_back(std::move(finding));
  // What the host does with pinned memory is done at the capture, not by a launch.
  std::erase_if(inner.accesses_, [](const Access& access) { return access.name == "host"; });
  graphs_[call.graph] = std::move(inner.accesses_);
  std::set<int>& communicators = graph_communicators_[call.graph];
  communicators.clear();
  for (const auto& [place, inside] : captured.calls) {
    if (inside.communicator != 0) communicators.insert(inside.communicator);
  }
}

void Walk::launch(const Call& call) {
  const auto graph = graphs_.find(call.graph);
  if (graph == graphs_.end()) return;  // captured before the record began
  const std::size_t agent = issue(call);
  if (const std::set<int>& communicators = graph_communicators_[call.graph]; !communicators.empty())
    follow_nccl(call.thread, agent, communicators);
  for (const Access& a : graph->second) {
    const auto begin = reinterpret_cast<std::uintptr_t>(a.begin);
    const auto block = graph_memory_.upper_bound(begin);
    const bool own = block != graph_memory_.begin() && std::prev(block)->second >= begin + a.bytes;
    access(agent, a.name, a.begin, a.bytes, a.write, own || a.own_memory);
  }
}

void Walk::step(const Call& call) {
  if (step_capture(call)) return;
  switch (call.kind) {
    case CallKind::kBeginCapture:
      graph_captures_[call.thread] = {.calls = {}, .streams = {call.stream}, .events = {}};
      break;
    case CallKind::kEndCapture: end_capture(call); break;
    case CallKind::kLaunchGraph: launch(call); break;
    case CallKind::kDestroyGraph:
      graphs_.erase(call.graph);
      graph_communicators_.erase(call.graph);
      break;
    case CallKind::kCreateStream: streams_.erase(call.stream), stream(call); break;
    case CallKind::kCreateEvent:
      recordings_.erase(recordings_.lower_bound({call.event, 0}),
                        recordings_.upper_bound({call.event, ~std::uint64_t{0}}));
      events_.insert(call.event);
      break;
    case CallKind::kRecord: {
      const std::size_t agent = issue(call);
      recordings_[{call.event, call.recording}] = agents_[agent].clock;
      break;
    }
    case CallKind::kWait: wait(call, issue(call)); break;
    case CallKind::kHostWait:
    case CallKind::kDone: {
      // A question about an event that was never recorded is answered with yes, rightly.
      if (call.kind == CallKind::kDone && call.recording == 0) break;
      const std::size_t waiter = host(call.thread);
      if (call.stream) {
        agents_[waiter].clock.join(agents_[stream(call)].clock);
      } else {
        wait(call, waiter);
      }
      known_done_.join(agents_[waiter].clock);
      break;
    }
    case CallKind::kAllocate: blocks_[call.to] = call.bytes; [[fallthrough]];
    case CallKind::kFree: {
      // What comes back from the driver at this address is other memory; it waits for all work that
      // used it.
      const auto block = blocks_.find(call.to);
      if (block != blocks_.end())
        each_piece(call.to, block->second,
                   [](Piece& piece) { piece = {.end = piece.end, .reads = {}}; });
      break;
    }
    case CallKind::kTake: take(call); break;
    case CallKind::kGiveBack: give_back(call); break;
    case CallKind::kRead:
    case CallKind::kWrite:
    case CallKind::kCopy:
    case CallKind::kSet: carry_out(call); break;
    case CallKind::kNcclGroupStart:
    case CallKind::kNcclGroupEnd:
    case CallKind::kNcclSend:
    case CallKind::kNcclReceive:
    case CallKind::kNcclCollective: step_nccl(call); break;
    case CallKind::kSignal: {
      const std::size_t agent = issue(call);
      signals_[call.to].emplace_back(static_cast<std::uint32_t>(call.recording),
                                     agents_[agent].clock);
      break;
    }
    case CallKind::kAwait: await(call, issue(call)); break;
    default: break;  // launches: what they touch is in the notes before them
  }
}

}  // namespace

std::vector<Finding> check_races(const std::vector<Call>& calls) { return Walk().run(calls); }

}  // namespace starling::cuda::shim
