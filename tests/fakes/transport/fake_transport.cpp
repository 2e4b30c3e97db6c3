#include "tests/fakes/transport/fake_world_state.h"

namespace starling {
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

}  // namespace starling
