#include "tests/fakes/nccl/nccl_fake.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "tests/fakes/cuda/recorder.h"

namespace starling {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;

struct Comm;

enum class OpKind : std::uint8_t { kSend, kReceive, kAllReduce, kReduceScatter, kAllGather };
constexpr const char* kOpNames[] = {"send", "receive", "all_reduce", "reduce_scatter",
                                    "all_gather"};

struct Batch;
struct Op {
  OpKind kind;
  Comm* comm = nullptr;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t count = 0;  ///< bytes of messages, elements of collectives (of each part)
  DType dtype = DType::kFloat32;
  int peer = -1;
  Batch* batch = nullptr;
};

/// What a rank issued together.
struct Batch {
  int rank = 0;  ///< of the world
  void* stream = nullptr;
  std::vector<Op> ops;
  std::uint64_t number = 0;
  std::size_t open = 0;
  bool stuck = false;
  bool replayed = false;  ///< by a graph
};

/// A rank's end of a communicator.
struct Comm {
  int number = 0;
  std::vector<int> members;  ///< ranks of the world, by their rank in it
  int rank = 0;
  int world_rank = 0;
  bool meeting = false;  ///< waits for others in init() or split()
  bool dead = false;
  bool failed = false;
  std::string error;
  std::uint64_t splits = 0, collectives = 0;
  std::shared_ptr<int> graphs = std::make_shared<int>();  ///< graphs that hold it have a copy
};

void note(CallKind kind, Call call) {
  call.kind = kind;
  cuda::shim::note(std::move(call));
}

template <class T>
void sum_into(const std::vector<const std::byte*>& in, std::size_t first, std::size_t count,
              std::vector<std::byte>& out) {
  out.resize(count * sizeof(T));
  auto* total = reinterpret_cast<T*>(out.data());
  for (std::size_t k = 0; k < in.size(); ++k) {
    const T* numbers = reinterpret_cast<const T*>(in[k]) + first;
    for (std::size_t i = 0; i < count; ++i) total[i] = k == 0 ? numbers[i] : total[i] + numbers[i];
  }
}

}  // namespace

class FakeNccl::State {
 public:
  State(int ranks, FakeNcclOptions options)
      : options_(std::move(options)),
        gone_(static_cast<std::size_t>(ranks)),
        counts_(static_cast<std::size_t>(ranks)) {}

  const FakeNcclOptions& options() const { return options_; }
  int ranks() const { return static_cast<int>(gone_.size()); }

  NcclId make_id() {
    const std::lock_guard lock(mutex_);
    NcclId id;
    const std::string text = "fake " + std::to_string(++ids_);
    std::copy(text.begin(), text.end(), id.bytes.begin());
    return id;
  }

  Comm* init(const NcclId& id, int ranks, int rank, int world_rank) {
    const std::lock_guard lock(mutex_);
    if (world_rank == options_.refuse_init)
      fail(ExitCode::kLost, "nccl", "ncclCommInitRankConfig: invalid usage (refused by the fake)");
    auto& meeting = inits_[id.bytes];
    if (meeting.number == 0) meeting.number = ++communicators_;
    meeting.members.resize(static_cast<std::size_t>(ranks), -1);
    meeting.members[static_cast<std::size_t>(rank)] = world_rank;
    Comm* comm = make_comm(meeting.number, rank, world_rank);
    comm->meeting = true;
    meeting.comms.push_back(comm);
    if (meeting.comms.size() == static_cast<std::size_t>(ranks)) {
      for (Comm* each : meeting.comms) {
        each->members = meeting.members;
        each->meeting = false;
      }
    }
    note(CallKind::kNcclInit, {.kind = {}, .communicator = meeting.number, .peer = rank});
    return comm;
  }

  void split(Comm* parent, int color, int key, NcclComm& joined) {
    const std::lock_guard lock(mutex_);
    check_usable(parent, "ncclCommSplit");
    if (parent->world_rank == options_.refuse_split)
      fail(ExitCode::kLost, "nccl", "ncclCommSplit: system error (refused by the fake)");
    joined = nullptr;
    parent->meeting = true;
    auto& meeting = splits_[{parent->number, parent->splits++}];
    meeting.push_back({parent, color, key, &joined});
    if (meeting.size() < parent->members.size()) return;
    std::map<int, std::vector<Splitting>> colors;
    for (const Splitting& one : meeting) {
      one.parent->meeting = false;
      if (one.color >= 0) {
        colors[one.color].push_back(one);
      } else {
        made_[one.parent->world_rank].push_back(
            {.kind = CallKind::kNcclSplit, .parent = one.parent->number});
      }
    }
    for (auto& [number, members] : colors) {
      std::sort(members.begin(), members.end(), [](const Splitting& x, const Splitting& y) {
        return std::pair(x.key, x.parent->rank) < std::pair(y.key, y.parent->rank);
      });
      const int communicator = ++communicators_;
      std::vector<int> ranks;
      for (const Splitting& one : members) ranks.push_back(one.parent->world_rank);
      for (std::size_t k = 0; k < members.size(); ++k) {
        const int rank = static_cast<int>(k);
        Comm* comm = make_comm(communicator, rank, ranks[k]);
        comm->members = ranks;
        *members[k].joined = comm;
        made_[ranks[k]].push_back({.kind = CallKind::kNcclSplit,
                                   .communicator = communicator,
                                   .parent = members[k].parent->number,
                                   .peer = rank});
      }
    }
  }

  /// Notes what came of a rank's splits, as its own calls: it makes the next one.
  void note_splits(int rank) {
    const std::lock_guard lock(mutex_);
    for (Call& call : std::exchange(made_[rank], {})) cuda::shim::note(std::move(call));
  }

  NcclState state(const Comm* comm) {
    const std::lock_guard lock(mutex_);
    require(!comm->dead, "nccl", "the state of a communicator that is no more was asked for");
    if (comm->failed) return NcclState::kFailed;
    if (comm->meeting) return NcclState::kBusy;
    for (const auto& batch : batches_) {
      if (batch->rank != comm->world_rank || batch->stuck || batch->replayed) continue;
      if (std::any_of(batch->ops.begin(), batch->ops.end(),
                      [&](const Op& op) { return op.comm == comm; }))
        return NcclState::kBusy;
    }
    return NcclState::kReady;
  }

  std::string error(const Comm* comm) {
    const std::lock_guard lock(mutex_);
    return comm->error;
  }

  void post(int rank, std::vector<Op> ops, void* stream) {
    if (ops.empty()) return;
    const std::lock_guard lock(mutex_);
    check(ops);
    post_locked(rank, std::move(ops), stream, false);
  }
  /// What a launch of a graph issues: comes back when it is through, or stuck.
  void replay(int rank, const std::vector<Op>& ops) {
    std::unique_lock lock(mutex_);
    if (std::any_of(ops.begin(), ops.end(),
                    [](const Op& op) { return op.comm->dead || op.comm->failed; }))
      return;
    const std::uint64_t number = post_locked(rank, ops, cuda::shim::launching(), true);
    const auto batch = [&] {
      return std::find_if(batches_.begin(), batches_.end(),
                          [&](const auto& each) { return each->number == number; });
    };
    const auto settled = [&] { return batch() == batches_.end() || (*batch())->stuck; };
    if (changed_.wait_for(lock, std::chrono::seconds(20), settled)) return;
    get_stuck(**batch());
    gone_[static_cast<std::size_t>(rank)] = true;
    spread_stuck();
  }
  /// In a capture: the work of each launch.
  std::function<void()> kept(const std::shared_ptr<State>& self, int rank, std::vector<Op> ops) {
    const std::lock_guard lock(mutex_);
    check(ops);
    std::vector<std::shared_ptr<int>> holds;
    for (const Op& op : ops) holds.push_back(op.comm->graphs);
    return
        [self, rank, ops = std::move(ops), holds = std::move(holds)] { self->replay(rank, ops); };
  }

  void end(Comm* comm, bool abort) {
    const std::lock_guard lock(mutex_);
    if (comm->dead) std::abort();  // ended twice
    if (!abort && comm->graphs.use_count() > 1) {
      std::fputs(
          "the fake of NCCL: a communicator is destroyed while a graph holds it; NCCL would wait "
          "for ever\n",
          stderr);
      std::abort();
    }
    comm->dead = true;
    if (abort) aborted_.insert(comm->number);
    Counts& counts = counts_[static_cast<std::size_t>(comm->world_rank)];
    ++(abort ? counts.aborted : counts.destroyed);
    note(CallKind::kNcclDestroy, {.kind = {},
                                  .label = abort ? "abort" : "destroy",
                                  .communicator = comm->number,
                                  .peer = comm->rank});
    for (auto& [key, meeting] : splits_)
      std::erase_if(meeting, [&](const Splitting& one) { return one.parent == comm; });
    for (const auto& batch : batches_) {
      const auto on_it = [&](const Op& op) { return op.comm == comm; };
      if (batch->rank != comm->world_rank ||
          std::none_of(batch->ops.begin(), batch->ops.end(), on_it))
        continue;
      withdraw(*batch);
      if (batch->stuck) cuda::shim::release_stream(batch->stream);
      batch->open = 0;
    }
    sweep();
    spread_stuck();
  }

  void stop(int rank) {
    const std::lock_guard lock(mutex_);
    gone_[static_cast<std::size_t>(rank)] = true;
    for (const auto& batch : batches_) {
      if (batch->rank == rank) get_stuck(*batch);
    }
    spread_stuck();
  }

  void break_down(int rank, const std::string& message) {
    const std::lock_guard lock(mutex_);
    for (const auto& comm : comms_) {
      if (comm->world_rank == rank) fail_comm(*comm, message);
    }
  }

  struct Counts {
    int initialised = 0, aborted = 0, destroyed = 0, registrations = 0, max_ctas = 0;
  };
  Counts counts(int rank) {
    const std::lock_guard lock(mutex_);
    return counts_.at(static_cast<std::size_t>(rank));
  }
  void count_ctas(int rank, int most) {
    const std::lock_guard lock(mutex_);
    counts_[static_cast<std::size_t>(rank)].max_ctas = most;
  }
  void count_registration(int rank, int change) {
    const std::lock_guard lock(mutex_);
    counts_[static_cast<std::size_t>(rank)].registrations += change;
  }

 private:
  struct Meeting {
    int number = 0;
    std::vector<int> members;
    std::vector<Comm*> comms;
  };
  struct Splitting {
    Comm* parent;
    int color, key;
    NcclComm* joined;
  };
  struct Channel {
    std::deque<Op*> sends, receives;
  };
  using Gathering = std::vector<Op*>;  ///< by rank in the communicator

  Comm* make_comm(int number, int rank, int world_rank) {
    comms_.push_back(std::make_unique<Comm>());
    Comm* comm = comms_.back().get();
    comm->number = number;
    comm->rank = rank;
    comm->world_rank = world_rank;
    ++counts_[static_cast<std::size_t>(world_rank)].initialised;
    return comm;
  }

  static void check_usable(const Comm* comm, const char* call) {
    require(comm && !comm->dead, "nccl", "{} on a communicator that is no more", call);
    if (comm->failed) fail(ExitCode::kLost, "nccl", "{}: remote error ({})", call, comm->error);
    require(!comm->meeting, "nccl", "{} on a communicator that is busy", call);
  }

  static void fail_comm(Comm& comm, const std::string& message) {
    comm.failed = true;
    comm.error = message;
  }

  static void check(const std::vector<Op>& ops) {
    for (const Op& op : ops) check_usable(op.comm, kOpNames[static_cast<std::size_t>(op.kind)]);
  }

  /// The batch's number.
  std::uint64_t post_locked(int rank, std::vector<Op> ops, void* stream, bool replayed) {
    batches_.push_back(std::make_unique<Batch>());
    Batch& batch = *batches_.back();
    const std::uint64_t number = batch.number = ++posted_;
    batch.rank = rank;
    batch.stream = stream;
    batch.replayed = replayed;
    batch.open = ops.size();
    batch.ops = std::move(ops);
    for (Op& op : batch.ops) {
      op.batch = &batch;
      if (gone_[static_cast<std::size_t>(rank)]) continue;
      if (op.kind == OpKind::kSend || op.kind == OpKind::kReceive) {
        const int peer = op.comm->members.at(static_cast<std::size_t>(op.peer));
        const bool sends = op.kind == OpKind::kSend;
        Channel& channel = channels_[{op.comm->number, sends ? rank : peer, sends ? peer : rank}];
        (sends ? channel.sends : channel.receives).push_back(&op);
        match(channel);
      } else {
        meet(op);
      }
    }
    sweep();
    spread_stuck();
    return number;
  }

  static std::string captured_on_one(const Batch& a, const Batch& b) {
    const Batch &graph = a.replayed ? a : b, &other = a.replayed ? b : a;
    return fmt::format("rank {} issued an operation within a graph, rank {} issued it by itself",
                       graph.rank, other.rank);
  }

  void match(Channel& channel) {
    while (!channel.sends.empty() && !channel.receives.empty()) {
      Op &send = *channel.sends.front(), &receive = *channel.receives.front();
      channel.sends.pop_front();
      channel.receives.pop_front();
      if (send.batch->replayed != receive.batch->replayed) {
        const std::string message = captured_on_one(*send.batch, *receive.batch);
        fail_comm(*send.comm, message);
        fail_comm(*receive.comm, message);
      } else if (send.count == receive.count) {
        if (send.count) std::memcpy(receive.to, send.from, send.count);
      } else {
        const std::string message =
            fmt::format("rank {} sent {} bytes to rank {}, which receives {}", send.batch->rank,
                        send.count, receive.batch->rank, receive.count);
        fail_comm(*send.comm, message);
        fail_comm(*receive.comm, message);
      }
      --send.batch->open;
      --receive.batch->open;
    }
  }

  void meet(Op& op) {
    const std::pair key{op.comm->number, op.comm->collectives++};
    Gathering& gathering = gatherings_[key];
    gathering.resize(op.comm->members.size());
    gathering[static_cast<std::size_t>(op.comm->rank)] = &op;
    if (std::any_of(gathering.begin(), gathering.end(), [](const Op* each) { return !each; }))
      return;
    const Op& first = *gathering.front();
    for (const Op* each : gathering) {
      const bool alike =
          each->kind == first.kind && each->count == first.count && each->dtype == first.dtype;
      const bool captured = each->batch->replayed == first.batch->replayed;
      if (alike && captured) continue;
      const std::string message =
          alike ? captured_on_one(*first.batch, *each->batch)
                : fmt::format("rank {} called {} of {} {}, rank {} {} of {} {}", first.batch->rank,
                              kOpNames[static_cast<std::size_t>(first.kind)], first.count,
                              name_of(first.dtype), each->batch->rank,
                              kOpNames[static_cast<std::size_t>(each->kind)], each->count,
                              name_of(each->dtype));
      for (const Op* member : gathering) fail_comm(*member->comm, message);
    }
    if (!first.comm->failed) carry_out(gathering);
    for (const Op* each : gathering) --each->batch->open;
    gatherings_.erase(key);
  }

  static void carry_out(const Gathering& gathering) {
    const Op& first = *gathering.front();
    const std::size_t size = size_of(first.dtype);
    std::vector<const std::byte*> in;
    for (const Op* each : gathering) in.push_back(each->from);
    if (first.kind == OpKind::kAllGather) {
      std::vector<std::byte> all;
      for (const std::byte* part : in) all.insert(all.end(), part, part + first.count * size);
      for (const Op* each : gathering) std::copy(all.begin(), all.end(), each->to);
      return;
    }
    const bool scatter = first.kind == OpKind::kReduceScatter;
    const std::size_t all = first.count * (scatter ? gathering.size() : 1);
    std::vector<std::byte> total;
    if (first.dtype == DType::kFloat64) {
      sum_into<double>(in, 0, all, total);
    } else {
      sum_into<float>(in, 0, all, total);
    }
    for (std::size_t k = 0; k < gathering.size(); ++k) {
      const std::size_t begin = scatter ? k * first.count * size : 0;
      std::copy_n(total.begin() + static_cast<std::ptrdiff_t>(begin), first.count * size,
                  gathering[k]->to);
    }
  }

  /// Nobody will meet what the batch still waits for.
  void withdraw(Batch& batch) {
    const auto of_batch = [&](const Op* op) { return op && op->batch == &batch; };
    for (auto& [key, channel] : channels_) {
      std::erase_if(channel.sends, of_batch);
      std::erase_if(channel.receives, of_batch);
    }
    for (auto& [key, gathering] : gatherings_)
      std::replace_if(gathering.begin(), gathering.end(), of_batch, nullptr);
  }

  void get_stuck(Batch& batch) {
    if (batch.stuck || batch.open == 0) return;
    batch.stuck = true;
    withdraw(batch);
    if (batch.stream) cuda::shim::hold_stream(batch.stream);
  }

  /// A batch is stuck with a rank that is gone, and then its own rank is: all it issues goes
  /// through that stream. A launch also with a communicator that another rank has aborted.
  void spread_stuck() {
    const auto needs_gone = [&](const Batch& batch) {
      if (gone_[static_cast<std::size_t>(batch.rank)]) return true;
      const auto aborted = [&](const Op& op) { return aborted_.contains(op.comm->number); };
      if (batch.replayed && std::any_of(batch.ops.begin(), batch.ops.end(), aborted)) return true;
      return std::any_of(batch.ops.begin(), batch.ops.end(), [&](const Op& op) {
        if (!waits(op)) return false;
        const auto gone = [&](int rank) { return gone_[static_cast<std::size_t>(rank)]; };
        if (op.peer >= 0)
          return static_cast<bool>(gone(op.comm->members[static_cast<std::size_t>(op.peer)]));
        return std::any_of(op.comm->members.begin(), op.comm->members.end(), gone);
      });
    };
    for (bool changed = true; changed;) {
      changed = false;
      for (const auto& batch : batches_) {
        if (batch->stuck || batch->open == 0 || !needs_gone(*batch)) continue;
        get_stuck(*batch);
        gone_[static_cast<std::size_t>(batch->rank)] = true;
        changed = true;
      }
    }
    changed_.notify_all();
  }

  bool waits(const Op& op) const {
    for (const auto& [key, channel] : channels_) {
      for (const auto* side : {&channel.sends, &channel.receives}) {
        if (std::find(side->begin(), side->end(), &op) != side->end()) return true;
      }
    }
    for (const auto& [key, gathering] : gatherings_) {
      if (std::find(gathering.begin(), gathering.end(), &op) != gathering.end()) return true;
    }
    return false;
  }

  void sweep() {
    std::erase_if(batches_, [](const auto& batch) { return batch->open == 0; });
  }

  const FakeNcclOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;  ///< batches are through, or stuck
  std::uint64_t posted_ = 0;
  std::set<int> aborted_;  ///< communicators, by a rank at least
  int ids_ = 0, communicators_ = 0;
  std::vector<char> gone_;  ///< by rank: nothing of it will ever be through again
  std::vector<Counts> counts_;
  std::map<int, std::vector<Call>> made_;  ///< by rank: splits that it has not noted yet
  std::vector<std::unique_ptr<Comm>> comms_;
  std::map<std::array<char, 128>, Meeting> inits_;
  std::map<std::pair<int, std::uint64_t>, std::vector<Splitting>> splits_;
  /// By communicator, from, to (ranks of the world)
  std::map<std::tuple<int, int, int>, Channel> channels_;
  std::map<std::pair<int, std::uint64_t>, Gathering> gatherings_;
  std::vector<std::unique_ptr<Batch>> batches_;  ///< that are not through
};

namespace {

class FakeEnd final : public Nccl {
 public:
  FakeEnd(std::shared_ptr<FakeNccl::State> state, int rank)
      : state_(std::move(state)), rank_(rank) {}

  std::string version() const override { return "2.99.0 (fake)"; }
  std::string device() override {
    const auto& devices = state_->options().devices;
    return devices.empty() ? "GPU " + std::to_string(rank_)
                           : devices.at(static_cast<std::size_t>(rank_));
  }
  NcclId make_id() override { return state_->make_id(); }
  NcclComm init(const NcclId& id, int ranks, int rank, int max_ctas) override {
    state_->count_ctas(rank_, max_ctas);
    return state_->init(id, ranks, rank, rank_);
  }
  void split(NcclComm parent, int color, int key, NcclComm& joined) override {
    state_->note_splits(rank_);
    state_->split(of(parent), color, key, joined);
  }
  NcclState state(NcclComm comm) override { return state_->state(of(comm)); }
  std::string error(NcclComm comm) override { return state_->error(of(comm)); }

  void group_start() override {
    state_->note_splits(rank_);
    if (depth_++ == 0) note(CallKind::kNcclGroupStart, {});
  }
  void group_end() override {
    require(depth_ > 0, "nccl", "a group's end without its start");
    if (--depth_ > 0) return;
    note(CallKind::kNcclGroupEnd, {});
    std::vector<Op> ops = std::exchange(ops_, {});
    if (!ops.empty() && !cuda::shim::spoilt(stream_).empty())
      fail(ExitCode::kLost, "nccl", "ncclGroupEnd: unhandled cuda error");
    if (!ops.empty() && cuda::shim::captures(stream_)) {
      cuda::shim::keep_work(stream_, state_->kept(state_, rank_, std::move(ops)));
    } else {
      state_->post(rank_, std::move(ops), stream_);
    }
  }

  void send(const void* from, std::size_t bytes, int peer, NcclComm comm, void* stream) override {
    note(CallKind::kNcclSend, {.kind = {},
                               .stream = stream,
                               .from = from,
                               .bytes = bytes,
                               .communicator = of(comm)->number,
                               .peer = peer});
    add({OpKind::kSend, of(comm), static_cast<const std::byte*>(from), nullptr, bytes,
         DType::kUInt8, peer},
        stream);
  }
  void receive(void* to, std::size_t bytes, int peer, NcclComm comm, void* stream) override {
    note(CallKind::kNcclReceive, {.kind = {},
                                  .stream = stream,
                                  .to = to,
                                  .bytes = bytes,
                                  .communicator = of(comm)->number,
                                  .peer = peer});
    add({OpKind::kReceive, of(comm), nullptr, static_cast<std::byte*>(to), bytes, DType::kUInt8,
         peer},
        stream);
  }
  void all_reduce(const void* from, void* to, std::size_t count, DType dtype, NcclComm comm,
                  void* stream) override {
    collective(OpKind::kAllReduce, from, to, count, 1, 1, dtype, comm, stream);
  }
  void reduce_scatter(const void* from, void* to, std::size_t count_each, DType dtype,
                      NcclComm comm, void* stream) override {
    collective(OpKind::kReduceScatter, from, to, count_each, of(comm)->members.size(), 1, dtype,
               comm, stream);
  }
  void all_gather(const void* from, void* to, std::size_t count_each, DType dtype, NcclComm comm,
                  void* stream) override {
    collective(OpKind::kAllGather, from, to, count_each, 1, of(comm)->members.size(), dtype, comm,
               stream);
  }

  void* register_buffer(NcclComm, void* data, std::size_t) override {
    if (!state_->options().registers) return nullptr;
    if (cuda::shim::forbids_driver()) {
      fail(ExitCode::kLost, "nccl",
           "ncclCommRegister: unhandled cuda error (operation not permitted when stream is "
           "capturing)");
    }
    state_->count_registration(rank_, 1);
    return data;
  }
  void deregister_buffer(NcclComm, void*) noexcept override {
    state_->count_registration(rank_, -1);
  }
  void destroy(NcclComm comm) noexcept override { state_->end(of(comm), false); }
  void abort(NcclComm comm) noexcept override { state_->end(of(comm), true); }

 private:
  static Comm* of(NcclComm comm) { return static_cast<Comm*>(comm); }

  void collective(OpKind kind, const void* from, void* to, std::size_t count, std::size_t parts_in,
                  std::size_t parts_out, DType dtype, NcclComm comm, void* stream) {
    const std::size_t bytes = count * size_of(dtype);
    note(CallKind::kNcclCollective, {.kind = {},
                                     .stream = stream,
                                     .label = kOpNames[static_cast<std::size_t>(kind)],
                                     .from = from,
                                     .to = to,
                                     .bytes = bytes * parts_in,
                                     .communicator = of(comm)->number,
                                     .bytes_to = bytes * parts_out});
    require(dtype == DType::kFloat32 || dtype == DType::kFloat64, "nccl", "a sum of {}",
            name_of(dtype));
    add({kind, of(comm), static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count,
         dtype, -1},
        stream);
  }

  void add(Op op, void* stream) {
    require(depth_ > 0, "nccl", "an operation outside of a group");
    require(ops_.empty() || stream == stream_, "nccl", "a group on two streams");
    stream_ = stream;
    ops_.push_back(op);
  }

  std::shared_ptr<FakeNccl::State> state_;
  int rank_;
  int depth_ = 0;
  void* stream_ = nullptr;
  std::vector<Op> ops_;
};

}  // namespace

FakeNccl::FakeNccl(int ranks, const FakeNcclOptions& options)
    : state_(std::make_shared<State>(ranks, options)) {}
FakeNccl::~FakeNccl() = default;
std::unique_ptr<Nccl> FakeNccl::open(int rank) {
  require(rank >= 0 && rank < state_->ranks(), "nccl", "rank {} in a world of {}", rank,
          state_->ranks());
  return std::make_unique<FakeEnd>(state_, rank);
}
void FakeNccl::stop(int rank) { state_->stop(rank); }
void FakeNccl::break_down(int rank, const std::string& message) {
  state_->break_down(rank, message);
}
int FakeNccl::initialised(int rank) const { return state_->counts(rank).initialised; }
int FakeNccl::aborted(int rank) const { return state_->counts(rank).aborted; }
int FakeNccl::destroyed(int rank) const { return state_->counts(rank).destroyed; }
int FakeNccl::registrations(int rank) const { return state_->counts(rank).registrations; }
int FakeNccl::max_ctas(int rank) const { return state_->counts(rank).max_ctas; }

}  // namespace starling
