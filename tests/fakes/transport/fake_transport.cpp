#include "tests/fakes/transport/fake_transport.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/capture.h"
#include "comm/mixers/messages.h"
#include "comm/other_ranks.h"
#include "comm/shared/direct_transport.h"
#include "comm/transports/checks.h"
#include "comm/transports/sums.h"
#include "core/error.h"
#include "core/philox.h"
#include "kernels/open_backend.h"
#include "tests/fakes/transport/thread_sharing.h"

namespace starling {
namespace {

using Clock = std::chrono::steady_clock;

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

// between looks at a flow, by the postman
constexpr auto kFlowLook = std::chrono::microseconds(50);
constexpr auto kFlowSlice = std::chrono::milliseconds(1);  // of a wait whose flow wants looks

/// One rank's side of something under way; all members but the constants are under the world's
/// lock.
struct Operation {
  int rank = 0;
  std::string what;
  Tensor send;
  std::vector<Tensor> receive;
  int open = 0;              ///< messages still to be delivered
  std::vector<int> awaited;  ///< the ranks at their other ends
  std::shared_ptr<Flow> flow = {};
  bool all_ready() const { return !flow || flow->ready() >= flow->bytes(); }
};
using OperationPtr = std::shared_ptr<Operation>;

void close_one(Operation& operation, int peer) {
  --operation.open;
  const auto it = std::find(operation.awaited.begin(), operation.awaited.end(), peer);
  if (it != operation.awaited.end()) operation.awaited.erase(it);
}

}  // namespace

/// What all ranks and the delivering thread share.
class FakeWorld::State {
 public:
  State(int ranks, const FakeWorldOptions& options)
      : options_(options),
        ranks_(ranks),
        stopped_(static_cast<std::size_t>(ranks)),
        heard_(static_cast<std::size_t>(ranks),
               std::vector<Clock::time_point>(static_cast<std::size_t>(ranks))),
        for_rank_(static_cast<std::size_t>(ranks)),
        postman_([this] { deliver(); }) {}

  ~State() {
    {
      const std::scoped_lock lock(mutex_);
      closing_ = true;
    }
    for_postman_.notify_one();
    postman_.join();
  }

  int ranks() const { return ranks_; }
  const FakeWorldOptions& options() const { return options_; }

  void stop(int rank) {
    const std::scoped_lock lock(mutex_);
    stopped_[static_cast<std::size_t>(rank)] = true;
  }

  /// Ends all waits: a rank threw.
  void fail_all(std::exception_ptr error, const std::string& why) {
    const std::scoped_lock lock(mutex_);
    if (!first_error_) first_error_ = std::move(error);
    failure_ = why;
    for (auto& rank : for_rank_) rank.notify_all();
  }
  /// Throws where a rank has thrown.
  void check(int rank) {
    const std::scoped_lock lock(mutex_);
    throw_if_failed(rank);
  }
  std::exception_ptr first_error() {
    const std::scoped_lock lock(mutex_);
    return first_error_;
  }

  OperationPtr start_neighbours(int rank, Lane lane, const Exchange& exchange, const Tensor& send,
                                const std::vector<Tensor>& receive, std::string what,
                                std::shared_ptr<Flow> flow = nullptr) {
    auto operation = std::make_shared<Operation>(
        Operation{rank, std::move(what), send, receive, 0, {}, std::move(flow)});
    const std::scoped_lock lock(mutex_);
    for (const int peer : exchange.send_to) {
      add_awaited(*operation, peer);
      Channel& channel = channels_[{lane, rank, peer}];
      channel.sends.push_back({operation, 0});
      match(rank, peer, channel);
    }
    for (std::size_t k = 0; k < exchange.receive_from.size(); ++k) {
      const int peer = exchange.receive_from[k];
      add_awaited(*operation, peer);
      Channel& channel = channels_[{lane, peer, rank}];
      channel.receives.push_back({operation, k});
      match(peer, rank, channel);
    }
    for_postman_.notify_one();
    return operation;
  }

  OperationPtr start_sum(int rank, Lane lane, const std::vector<int>& group, const Tensor& in,
                         const Tensor& out, std::string what, std::shared_ptr<Flow> flow) {
    auto operation = std::make_shared<Operation>(
        Operation{rank, std::move(what), in, {out}, 1, {}, std::move(flow)});
    const std::scoped_lock lock(mutex_);
    auto& mine = group_counts_[{lane, group, rank}];
    const std::uint64_t number = mine++;
    Gathering& gathering = gatherings_[{lane, group, number}];
    gathering.members.resize(group.size());
    const auto place =
        static_cast<std::size_t>(std::find(group.begin(), group.end(), rank) - group.begin());
    gathering.members[place] = operation;
    for (std::size_t m = 0; m < group.size(); ++m) {
      if (m == place) continue;
      if (gathering.members[m]) {
        std::erase(gathering.members[m]->awaited, rank);
      } else {
        operation->awaited.push_back(group[m]);
      }
    }
    if (std::all_of(gathering.members.begin(), gathering.members.end(),
                    [](const auto& member) { return member != nullptr; })) {
      double delay = 0.0;
      for (const int a : group) {
        for (const int b : group) delay = std::max(delay, message_delay(a, b, number));
      }
      schedule(delay, {group, gathering.members, 0, true});
      gatherings_.erase({lane, group, number});
    }
    for_postman_.notify_one();
    return operation;
  }

  bool done(const Operation& operation) {
    const std::scoped_lock lock(mutex_);
    if (operation.open != 0) throw_if_failed(operation.rank);
    return operation.open == 0;
  }

  void wait(const Operation& operation) {
    std::unique_lock lock(mutex_);
    const auto limit = Clock::now() + seconds(options_.timeout_seconds);
    while (operation.open != 0) {
      throw_if_failed(operation.rank);
      if (operation.flow) {
        lock.unlock();
        operation.flow->look();
        lock.lock();
        if (operation.open == 0) break;
      }
      of(operation.rank)
          .wait_until(lock, operation.flow ? std::min(limit, Clock::now() + kFlowSlice) : limit);
      if (operation.open != 0 && Clock::now() >= limit) {
        lose(operation.rank, with_copies(operation.what, operation.flow.get()), operation.awaited);
      }
    }
  }

  std::vector<std::string> all_gather(int rank, std::uint64_t number, const std::string& mine,
                                      const char* what) {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_[number];
    meeting.texts.resize(static_cast<std::size_t>(ranks_));
    if (!stopped_[static_cast<std::size_t>(rank)]) {
      meeting.texts[static_cast<std::size_t>(rank)] = mine;
      ++meeting.came;
      for (int j = 0; j < ranks_; ++j) hear(j, rank);
    }
    if (meeting.came == ranks_) {
      for (auto& other : for_rank_) other.notify_all();
    }
    const auto limit = Clock::now() + seconds(options_.timeout_seconds);
    while (meeting.came < ranks_) {
      throw_if_failed(rank);
      if (of(rank).wait_until(lock, limit) == std::cv_status::timeout && meeting.came < ranks_) {
        std::vector<int> awaited;
        for (int j = 0; j < ranks_; ++j) {
          if (!meeting.texts[static_cast<std::size_t>(j)]) awaited.push_back(j);
        }
        lose(rank, what, awaited);
      }
    }
    std::vector<std::string> result;
    for (const auto& text : meeting.texts) result.push_back(*text);
    if (++meeting.left == ranks_) meetings_.erase(number);
    return result;
  }

 private:
  struct End {
    OperationPtr operation;
    std::size_t buffer = 0;
  };
  /// From one rank to another: the k-th send meets the k-th receive.
  struct Channel {
    std::deque<End> sends, receives;
    std::uint64_t matched = 0;
  };
  struct Gathering {
    std::vector<OperationPtr> members;
  };
  struct Meeting {
    std::vector<std::optional<std::string>> texts;
    int came = 0, left = 0;
  };
  /// To be delivered: a message (members = sender, receiver), or a group's sum.
  struct Delivery {
    std::vector<int> ranks;
    std::vector<OperationPtr> members;
    std::size_t buffer = 0;
    bool sum = false;
    std::size_t moved = 0;  ///< bytes of a message whose sender's flow lets it go piece by piece
  };

  double message_delay(int from, int to, std::uint64_t number) const {
    if (options_.most_delay_seconds <= 0.0 || from == to) return 0.0;
    const Philox4x32 bits =
        philox(options_.seed, number,
               (static_cast<std::uint64_t>(from) << 32) | static_cast<std::uint32_t>(to));
    return options_.most_delay_seconds * (static_cast<double>(bits.v[0]) * 0x1p-32);
  }

  static void add_awaited(Operation& operation, int peer) {
    ++operation.open;
    operation.awaited.push_back(peer);
  }

  void match(int from, int to, Channel& channel) {
    while (!channel.sends.empty() && !channel.receives.empty()) {
      Delivery delivery{{from, to},
                        {channel.sends.front().operation, channel.receives.front().operation},
                        channel.receives.front().buffer,
                        false};
      channel.sends.pop_front();
      channel.receives.pop_front();
      schedule(message_delay(from, to, channel.matched++), std::move(delivery));
    }
  }

  void schedule(double delay, Delivery delivery) {
    deliveries_.emplace(Clock::now() + seconds(delay), std::move(delivery));
  }

  std::condition_variable& of(int rank) { return for_rank_[static_cast<std::size_t>(rank)]; }
  void hear(int listener, int from) {
    heard_[static_cast<std::size_t>(listener)][static_cast<std::size_t>(from)] = Clock::now();
  }

  void deliver() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
      if (deliveries_.empty()) {
        for_postman_.wait(lock);
        continue;
      }
      const auto next = deliveries_.begin();
      if (next->first > Clock::now()) {
        for_postman_.wait_until(lock, next->first);
        continue;
      }
      Delivery delivery = std::move(next->second);
      deliveries_.erase(next);
      if (std::any_of(delivery.ranks.begin(), delivery.ranks.end(),
                      [&](int r) { return stopped_[static_cast<std::size_t>(r)]; }))
        continue;
      lock.unlock();
      bool whole = false;
      std::exception_ptr error;
      try {
        whole = move_bytes(delivery);
      } catch (...) {  // a device's
        error = std::current_exception();
      }
      lock.lock();
      if (error) {
        if (!first_error_) first_error_ = error;
        failure_ = "a device failed";
        for (auto& rank : for_rank_) rank.notify_all();
        continue;
      }
      // they look once the lock is free
      for (const int rank : delivery.ranks) of(rank).notify_all();
      if (!whole) {
        schedule(std::chrono::duration<double>(kFlowLook).count(), std::move(delivery));
        continue;
      }
      if (delivery.sum) {
        for (const OperationPtr& member : delivery.members) {
          member->open = 0;
          member->awaited.clear();
        }
      } else {
        close_one(*delivery.members[0], delivery.ranks[1]);
        close_one(*delivery.members[1], delivery.ranks[0]);
      }
      for (const int a : delivery.ranks) {
        for (const int b : delivery.ranks) hear(a, b);
      }
    }
  }

  /// Moves what the flows let go; false while there is more.
  static bool move_bytes(Delivery& delivery) {
    if (!delivery.sum) {
      const Operation &sender = *delivery.members[0], &receiver = *delivery.members[1];
      const Tensor& from = sender.send;
      const Tensor& to = receiver.receive[delivery.buffer];
      const std::size_t end =
          sender.flow ? std::min(sender.flow->ready(), from.bytes()) : from.bytes();
      if (end > delivery.moved) {
        std::memcpy(to.raw() + delivery.moved, from.raw() + delivery.moved, end - delivery.moved);
        delivery.moved = end;
        if (receiver.flow) receiver.flow->arrived(delivery.buffer, end);
      }
      return end == from.bytes();
    }
    if (!std::all_of(delivery.members.begin(), delivery.members.end(),
                     [](const OperationPtr& member) { return member->all_ready(); })) {
      return false;
    }
    const Tensor& first = delivery.members[0]->send;
    std::vector<const std::byte*> in;
    for (const OperationPtr& member : delivery.members) in.push_back(member->send.raw());
    std::vector<std::byte> total(static_cast<std::size_t>(first.elements()) *
                                 size_of(sum_type(first.dtype())));
    sum_in_order(first.dtype(), in, nullptr, first.elements(), total.data());
    for (const OperationPtr& member : delivery.members) {
      if (!total.empty()) std::memcpy(member->receive[0].raw(), total.data(), total.size());
    }
    for (const OperationPtr& member : delivery.members) {
      if (member->flow) member->flow->arrived(0, total.size());
    }
    return true;
  }

  void throw_if_failed(int rank) const {
    if (!failure_.empty()) fail(ExitCode::kLost, "transport", "rank {}: {}", rank, failure_);
  }

  [[noreturn]] void lose(int rank, const std::string& what, const std::vector<int>& awaited) const {
    std::vector<int> ranks = awaited;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    std::vector<AwaitedRank> list;
    for (const int j : ranks) {
      const auto when = heard_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(j)];
      const bool ever = when != Clock::time_point{};
      list.push_back(
          {j, ever ? std::chrono::duration<double>(Clock::now() - when).count() : -1.0, {}});
    }
    fail_wait(rank, what, {}, options_.timeout_seconds, std::move(list));
  }

  const FakeWorldOptions options_;
  const int ranks_;
  std::mutex mutex_;
  std::vector<bool> stopped_;
  std::vector<std::vector<Clock::time_point>> heard_;  ///< [listener][from]
  std::condition_variable for_postman_;
  std::vector<std::condition_variable> for_rank_;
  std::map<std::tuple<Lane, int, int>, Channel> channels_;
  std::map<std::tuple<Lane, std::vector<int>, int>, std::uint64_t> group_counts_;
  std::map<std::tuple<Lane, std::vector<int>, std::uint64_t>, Gathering> gatherings_;
  std::unordered_map<std::uint64_t, Meeting> meetings_;
  std::multimap<Clock::time_point, Delivery> deliveries_;
  std::exception_ptr first_error_;
  std::string failure_;
  bool closing_ = false;
  std::thread postman_;  // last: it uses all of the above
};

namespace {

class FakePlane final : public World {
 public:
  FakePlane(FakeWorld::State& world, int rank) : world_(world), rank_(rank) {}
  int per_host() const {
    return world_.options().ranks_per_host > 0 ? world_.options().ranks_per_host : size();
  }
  int rank() const override { return rank_; }
  int size() const override { return world_.ranks(); }
  int local_rank() const override { return rank_ % per_host(); }
  int local_size() const override {
    return std::min(per_host(), size() - rank_ / per_host() * per_host());
  }
  void barrier() override { world_.all_gather(rank_, meetings_++, {}, "a barrier"); }
  void broadcast(void* data, std::size_t bytes, int root) override {
    const std::string mine =
        rank_ == root ? std::string(static_cast<const char*>(data), bytes) : std::string();
    const auto all = world_.all_gather(rank_, meetings_++, mine, "a broadcast");
    const std::string& sent = all[static_cast<std::size_t>(root)];
    require(sent.size() == bytes, "transport", "rank {} expects {} bytes, rank {} sent {}", rank_,
            bytes, root, sent.size());
    if (rank_ != root && bytes) std::memcpy(data, sent.data(), bytes);
  }
  std::vector<std::string> all_gather(const std::string& mine) override {
    return world_.all_gather(rank_, meetings_++, mine, "an exchange of texts");
  }
  void sum(double* values, std::size_t count) override {
    reduce("a sum of numbers", values, count, [](double a, double b) { return a + b; });
  }
  void max(double* values, std::size_t count) override {
    reduce("a maximum of numbers", values, count, [](double a, double b) { return a < b ? b : a; });
  }

 private:
  template <class Fold>
  void reduce(const char* what, double* values, std::size_t count, Fold fold) {
    const auto all = world_.all_gather(
        rank_, meetings_++,
        std::string(reinterpret_cast<const char*>(values), count * sizeof(double)), what);
    for (std::size_t i = 0; i < count; ++i) {
      double total = 0.0;
      for (std::size_t j = 0; j < all.size(); ++j) {
        double value = 0.0;
        std::memcpy(&value, all[j].data() + i * sizeof value, sizeof value);
        total = j == 0 ? value : fold(total, value);
      }
      values[i] = total;
    }
  }

  FakeWorld::State& world_;
  int rank_;
  std::uint64_t meetings_ = 0;
};

class FakeTransport final : public Transport {
 public:
  FakeTransport(std::shared_ptr<FakeWorld::State> world, int rank)
      : Transport(plane_),
        world_(std::move(world)),
        rank_(rank),
        plane_(*world_, rank),
        exceptions_at_start_(std::uncaught_exceptions()) {}
  /// Waits for what is in flight, unless an error is on its way.
  ~FakeTransport() override {
    if (std::uncaught_exceptions() > exceptions_at_start_) return;
    try {
      for (const auto& [ticket, operation] : tickets_) world_->wait(*operation);
    } catch (const Error&) {  // a rank was lost: nothing more will come
    }
  }

  int per_host() const { return plane_.per_host(); }
  std::string name() const override { return "fake"; }

  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    require(exchange.kind != Exchange::Kind::kNone, "transport",
            "an exchange of kind none has nothing to start");
    check_exchange(rank_, size(), exchange, send, receive);
    if (exchange.kind == Exchange::Kind::kNeighbours) {
      return keep(world_->start_neighbours(rank_, label.lane, exchange, send, receive,
                                           describe(exchange, label), std::move(flow)));
    }
    if (exchange.kind == Exchange::Kind::kGroupSum) {
      return keep(world_->start_sum(rank_, label.lane, exchange.group, send, receive[0],
                                    describe(exchange, label), std::move(flow)));
    }
    std::shared_ptr<Flow> inward = flow ? std::make_shared<NodeFlow>(std::move(flow)) : nullptr;
    if (!exchange.parts.empty())
      return exchange_parts(exchange, send, receive[0], label, std::move(inward));
    const Ticket inside =
        keep(world_->start_sum(rank_, label.lane, exchange.group, send, like(send),
                               describe(exchange, label), std::move(inward)));
    nodes_.emplace(inside, NodeExchange{exchange, label, receive[0], {}, {}, {}});
    return inside;
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    check_sum(in, out);
    std::vector<int> all;
    for (int r = 0; r < size(); ++r) all.push_back(r);
    return keep(
        world_->start_sum(rank_, label.lane, all, in, out, describe_sum(label), std::move(flow)));
  }
  void check() override { world_->check(rank_); }
  bool done(Ticket ticket) override {
    if (!world_->done(*find(ticket))) return false;
    if (nodes_.count(ticket) == 0) return true;
    go_between_nodes(ticket);
    return world_->done(*nodes_.at(ticket).between);
  }
  void wait(Ticket ticket) override {
    world_->wait(*find(ticket));
    if (nodes_.count(ticket) != 0) {
      go_between_nodes(ticket);
      finish_nodes(ticket);
    }
    if (const auto last = copies_.find(ticket); last != copies_.end()) {
      const auto& [from, to, flow] = last->second;
      // Nobody else may have asked for what is sent
      while (flow && flow->ready() < flow->bytes()) std::this_thread::yield();
      if (from.raw() != to.raw()) from.backend().copy(from, to);
      copies_.erase(last);
    }
    tickets_.erase(ticket);
  }

  void prepare(const std::vector<std::vector<int>>&) override {}
  std::unique_ptr<Mixer> make_mixer(Backend& backend) override {
    return make_message_mixer(backend, *this);
  }
  std::string why_not_captured() const override { return through_the_host(*this); }
  std::unique_ptr<CapturePart> join_capture(std::int64_t) override { return nullptr; }

 private:
  /// A round over nodes: the node's sum first, of whole buffers, which gives the same numbers as
  /// that of shards; the rest when this rank asks for it.
  struct NodeExchange {
    Exchange exchange;
    ExchangeLabel label;
    Tensor out, sent;
    std::vector<Tensor> arrived;
    OperationPtr between;
  };
  /// Of a node's sum: what it brings is not yet what was asked for.
  class NodeFlow final : public Flow {
   public:
    explicit NodeFlow(std::shared_ptr<Flow> inner)
        : Flow(inner->bytes()), inner_(std::move(inner)) {}
    std::size_t ready() override { return inner_->ready(); }
    void arrived(std::size_t, std::size_t) override {}
    void look() override { inner_->look(); }

   private:
    std::shared_ptr<Flow> inner_;
  };
  static Tensor like(const Tensor& tensor) {
    return {tensor.backend(), tensor.shape(), tensor.dtype()};
  }

  void go_between_nodes(Ticket ticket) {
    NodeExchange& nodes = nodes_.at(ticket);
    if (nodes.between) return;
    const Tensor& mean = find(ticket)->receive[0];
    const double share = 1.0 / static_cast<double>(nodes.exchange.group.size());
    sum_in_order(mean.dtype(), {mean.raw()}, &share, mean.elements(), mean.raw());
    Exchange peers = nodes.exchange;
    peers.kind = Exchange::Kind::kNeighbours;
    const bool narrow = nodes.exchange.bf16_between;
    nodes.sent = narrow ? Tensor(mean.backend(), mean.shape(), DType::kBFloat16) : mean;
    if (narrow) encode_bf16(mean.data<float>(), mean.elements(), nodes.sent.raw());
    for (std::size_t k = 0; k < peers.receive_from.size(); ++k)
      nodes.arrived.push_back(like(nodes.sent));
    nodes.between = world_->start_neighbours(rank_, nodes.label.lane, peers, nodes.sent,
                                             nodes.arrived, describe(nodes.exchange, nodes.label));
  }
  void finish_nodes(Ticket ticket) {
    const NodeExchange& nodes = nodes_.at(ticket);
    world_->wait(*nodes.between);
    std::vector<Tensor> wide;  // what came as bf16, decoded
    const auto numbers_of = [&](const Tensor& tensor) -> const std::byte* {
      if (!nodes.exchange.bf16_between) return tensor.raw();
      wide.push_back(like(nodes.out));
      decode_bf16(tensor.raw(), tensor.elements(), wide.back().data<float>());
      return wide.back().raw();
    };
    std::vector<const std::byte*> terms{find(ticket)->receive[0].raw()};
    if (nodes.exchange.bf16_between) terms.push_back(numbers_of(nodes.sent));
    for (const Tensor& tensor : nodes.arrived) terms.push_back(numbers_of(tensor));
    in_node_order(nodes.exchange, terms);
    sum_in_order(nodes.out.dtype(), terms, node_weights(nodes.exchange).data(),
                 nodes.out.elements(), nodes.out.raw());
    nodes_.erase(ticket);
  }

  /// A reduce-scatter as a sum of the whole, an all-gather as messages to all others.
  Ticket exchange_parts(const Exchange& exchange, const Tensor& send, const Tensor& receive,
                        const ExchangeLabel& label, std::shared_ptr<Flow> flow) {
    const std::vector<int>& group = exchange.group;
    const auto part_of = [&](const Tensor& whole, std::size_t k) {
      return whole.slice(exchange.parts[k], Shape{exchange.parts[k + 1] - exchange.parts[k]});
    };
    const auto me = static_cast<std::size_t>(std::ranges::find(group, rank_) - group.begin());
    if (exchange.kind == Exchange::Kind::kScatterSum) {
      const Tensor sum = like(send);
      const Ticket ticket = keep(world_->start_sum(rank_, label.lane, group, send, sum,
                                                   describe(exchange, label), std::move(flow)));
      copies_.emplace(ticket, Copy{part_of(sum, me), receive, nullptr});
      return ticket;
    }
    Exchange others;
    others.kind = Exchange::Kind::kNeighbours;
    std::vector<Tensor> places;
    for (std::size_t k = 0; k < group.size(); ++k) {
      if (k == me) continue;
      others.send_to.push_back(group[k]);
      others.receive_from.push_back(group[k]);
      places.push_back(part_of(receive, k));
    }
    const Ticket ticket = keep(world_->start_neighbours(rank_, label.lane, others, send, places,
                                                        describe(exchange, label), flow));
    copies_.emplace(ticket, Copy{send, part_of(receive, me), std::move(flow)});
    return ticket;
  }

  Ticket keep(OperationPtr operation) {
    tickets_.emplace(++last_, std::move(operation));
    return last_;
  }
  OperationPtr find(Ticket ticket) const {
    const auto it = tickets_.find(ticket);
    require(it != tickets_.end(), "transport", "ticket {} is not under way", ticket);
    return it->second;
  }

  std::shared_ptr<FakeWorld::State> world_;
  int rank_;
  FakePlane plane_;
  int exceptions_at_start_;
  Ticket last_ = 0;
  std::unordered_map<Ticket, OperationPtr> tickets_;
  std::unordered_map<Ticket, NodeExchange> nodes_;  ///< those of tickets_ that go on between nodes
  /// Of those by parts: what is copied in the end, once all is there
  struct Copy {
    Tensor from, to;
    std::shared_ptr<Flow> flow;
  };
  std::unordered_map<Ticket, Copy> copies_;
};

}  // namespace

FakeWorld::FakeWorld(int ranks, const FakeWorldOptions& options) {
  require(ranks >= 1, "transport", "a world of {} ranks", ranks);
  state_ = std::make_shared<State>(ranks, options);
}
FakeWorld::~FakeWorld() = default;

int FakeWorld::size() const { return state_->ranks(); }
std::unique_ptr<Transport> FakeWorld::transport(int rank) {
  require(rank >= 0 && rank < size(), "transport", "rank {} in a world of {}", rank, size());
  auto fake = std::make_unique<FakeTransport>(state_, rank);
  const FakeWorldOptions& options = state_->options();
  if (!options.direct) return fake;
  auto sharing = make_thread_sharing("host " + std::to_string(rank / fake->per_host()),
                                     rank == options.refuse);
  return make_direct_transport(
      std::move(fake), std::move(sharing),
      {options.timeout_seconds, false, [state = state_, rank] { state->check(rank); }});
}
void FakeWorld::stop(int rank) { state_->stop(rank); }

void FakeWorld::run(const std::function<void(Transport&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([this, rank, &body] {
      try {
        const auto end = transport(rank);
        body(*end);
      } catch (const std::exception& error) {
        state_->fail_all(std::current_exception(),
                         fmt::format("rank {} ended with: {}", rank, error.what()));
      } catch (...) {  // what a check of a test framework throws need not be a std::exception
        state_->fail_all(std::current_exception(),
                         fmt::format("rank {} ended with an exception", rank));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (const auto error = state_->first_error()) std::rethrow_exception(error);
}

void FakeWorld::run(const std::function<void(Transport&, Backend&)>& body) {
  const auto first = static_cast<int>(backends_.size());
  for (int rank = 0; rank < size(); ++rank) backends_.push_back(open_backend(DeviceType::kCpu, 1));
  run([&](Transport& transport) {
    body(transport, *backends_[static_cast<std::size_t>(first + transport.rank())]);
  });
}

}  // namespace starling
