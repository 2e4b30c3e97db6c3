#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/flight.h"
#include "comm/mpi/operation.h"
#include "comm/transports/checks.h"
#include "comm/transports/node_mix.h"
#include "comm/transports/rank_order_sum.h"

namespace starling::detail {
namespace {

constexpr std::int64_t kShardGrain = 32;  // elements
constexpr std::size_t kLeastPieceBytes =
    // Bytes of a piece at least, and a shard has at most kMostPieces: both directions of a link
    // stay busy together
    256 << 10;
constexpr std::size_t kMostPieces = 256;

/// A round over nodes. The bucket is cut into one shard for each rank of a node. Every rank gets
/// its shard from all ranks of its node and takes the mean, exchanges that with its peers on other
/// nodes, mixes, and sends the result to the ranks of its node. So every number crosses the link
/// between two nodes once in each direction.
class NodeOperation final : public MpiOperation {
 public:
  NodeOperation(MpiWorld& world, const Exchange& exchange, const Tensor& in, const Tensor& out,
                const ExchangeLabel& label, std::shared_ptr<Flow> flow)
      : MpiOperation(describe(exchange, label), partners_of(&exchange, world.size, world.rank),
                     label, std::move(flow)),
        world_(world),
        requests_(world),
        exchange_(exchange),
        in_(in),
        out_(out) {
    element_ = static_cast<std::int64_t>(size_of(in.dtype()));
    own_ = static_cast<std::size_t>(
        std::find(exchange.group.begin(), exchange.group.end(), world.rank) -
        exchange.group.begin());
    for (const int member : exchange_.group) {
      member_send_tags_.push_back(member == world.rank ? 0
                                                       : world.next_send_tag(member, label.lane));
      member_receive_tags_.push_back(
          member == world.rank ? 0 : world.next_receive_tag(member, label.lane));
    }
    for (const int peer : exchange_.send_to)
      peer_send_tags_.push_back(world.next_send_tag(peer, label.lane));
    for (const int peer : exchange_.receive_from)
      peer_receive_tags_.push_back(world.next_receive_tag(peer, label.lane));
  }

  bool advance() override {
    bool moved = false;
    if (stage_ == kStart) {
      if (!may_send(in_.bytes())) return false;
      post();
      stage_ = kInside;
      moved = true;
    }
    if (requests_.test([&](int stage) { --open_[index(stage)]; }) > 0) moved = true;
    if (stage_ == kInside && open_[kInside] == 0) {
      take_mean();
      stage_ = kBetween;
      moved = true;
    }
    if (stage_ == kBetween && open_[kBetween] == 0) {
      mix();
      stage_ = kBack;
      moved = true;
    }
    if (stage_ == kBack && open_[kBack] == 0) {
      world_.give_scratch(std::move(scratch_));
      if (flow_) flow_->arrived(0, out_.bytes());
      finish();
    }
    return moved;
  }

  std::vector<int> missing() const override { return requests_.peers(); }

 private:
  enum Stage : int { kStart, kInside, kBetween, kBack, kStages };
  struct Span {
    std::int64_t first, count;
  };
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  Span shard(std::size_t member) const {
    const auto members = static_cast<std::int64_t>(exchange_.group.size());
    const std::int64_t each =
        ((in_.elements() + members - 1) / members + kShardGrain - 1) / kShardGrain * kShardGrain;
    const std::int64_t first = std::min(in_.elements(), each * static_cast<std::int64_t>(member));
    return {first, std::min(each, in_.elements() - first)};
  }
  std::byte* at(const Tensor& tensor, Span span) const {
    return tensor.raw() + span.first * element_;
  }
  std::size_t bytes(Span span) const { return static_cast<std::size_t>(span.count * element_); }
  /// Shards that came from the members of the node, then those from the peers, then this node's
  /// mean, then that rounded to bf16. What travels as bf16 lies in the second half of its place, to
  /// be decoded there.
  std::byte* scratch(std::size_t k) { return scratch_.data() + k * bytes(shard(own_)); }
  std::byte* mean() { return scratch(exchange_.group.size() + exchange_.receive_from.size()); }
  std::byte* rounded_mean() {
    return scratch(exchange_.group.size() + exchange_.receive_from.size() + 1);
  }
  std::size_t wire_bytes() const {
    return exchange_.bf16_between ? bytes(shard(own_)) / 2 : bytes(shard(own_));
  }
  std::byte* on_wire(std::byte* place) const { return place + (bytes(shard(own_)) - wire_bytes()); }

  template <class Move>
  void in_pieces(std::byte* data, std::size_t count, Stage stage, const Move& move) {
    const std::size_t piece =
        std::max(kLeastPieceBytes, ((count + kMostPieces - 1) / kMostPieces + 4095) / 4096 * 4096);
    for (std::size_t first = 0; first < count; first += piece) {
      ++open_[index(stage)];
      move(data + first, std::min(piece, count - first));
    }
  }
  void send(std::byte* data, std::size_t count, int peer, int tag, Stage stage) {
    in_pieces(data, count, stage,
              [&](std::byte* piece, std::size_t n) { requests_.send(piece, n, peer, tag, stage); });
  }
  void receive(std::byte* data, std::size_t count, int peer, int tag, Stage stage) {
    in_pieces(data, count, stage, [&](std::byte* piece, std::size_t n) {
      requests_.receive(piece, n, peer, tag, stage);
    });
  }

  void post() {
    const std::size_t members = exchange_.group.size(), mine = bytes(shard(own_));
    scratch_ = world_.take_scratch(
        mine * (members + exchange_.receive_from.size() + (exchange_.bf16_between ? 2 : 1)));
    for (std::size_t m = 0; m < members; ++m) {
      if (m == own_) continue;
      receive(scratch(m), mine, exchange_.group[m], member_receive_tags_[m], kInside);
      receive(at(out_, shard(m)), bytes(shard(m)), exchange_.group[m], member_receive_tags_[m] + 1,
              kBack);
    }
    for (std::size_t k = 0; k < exchange_.receive_from.size(); ++k) {
      receive(on_wire(scratch(members + k)), wire_bytes(), exchange_.receive_from[k],
              peer_receive_tags_[k], kBetween);
    }
    for (std::size_t step = 1; step < members; ++step) {
      const std::size_t m = (own_ + step) % members;  // not all to the same member first
      send(at(in_, shard(m)), bytes(shard(m)), exchange_.group[m], member_send_tags_[m], kInside);
    }
  }

  void take_mean() {
    const Span mine = shard(own_);
    std::vector<const std::byte*> terms;
    for (std::size_t m = 0; m < exchange_.group.size(); ++m)
      terms.push_back(m == own_ ? at(in_, mine) : scratch(m));
    sum_in_rank_order(in_.dtype(), terms.data(), static_cast<int>(terms.size()), mine.count,
                      mean());
    const std::byte* sum = mean();
    const double share = 1.0 / static_cast<double>(terms.size());
    weighted_sum_in_order(in_.dtype(), &sum, &share, 1, mine.count, mean());
    if (exchange_.bf16_between)
      encode_bf16(reinterpret_cast<const float*>(mean()), mine.count, on_wire(rounded_mean()));
    std::byte* const sent = on_wire(exchange_.bf16_between ? rounded_mean() : mean());
    for (std::size_t k = 0; k < exchange_.send_to.size(); ++k)
      send(sent, wire_bytes(), exchange_.send_to[k], peer_send_tags_[k], kBetween);
  }

  const std::byte* decoded(std::byte* place) const {
    if (exchange_.bf16_between)
      decode_bf16(on_wire(place), shard(own_).count, reinterpret_cast<float*>(place));
    return place;
  }

  void mix() {
    const Span mine = shard(own_);
    std::vector<const std::byte*> arrived;
    for (std::size_t k = 0; k < exchange_.receive_from.size(); ++k)
      arrived.push_back(decoded(scratch(exchange_.group.size() + k)));
    const NodeMix mix =
        node_mix(exchange_, mean(), exchange_.bf16_between ? decoded(rounded_mean()) : nullptr,
                 std::move(arrived));
    weighted_sum_in_order(in_.dtype(), mix.terms.data(), mix.weights.data(),
                          static_cast<int>(mix.terms.size()), mine.count, at(out_, mine));
    for (std::size_t step = 1; step < exchange_.group.size(); ++step) {
      const std::size_t m = (own_ + step) % exchange_.group.size();
      send(at(out_, mine), bytes(mine), exchange_.group[m], member_send_tags_[m] + 1, kBack);
    }
  }

  MpiWorld& world_;
  RequestSet requests_;
  Exchange exchange_;
  Tensor in_, out_;
  std::int64_t element_ = 4;
  std::size_t own_ = 0;
  std::vector<int> member_send_tags_, member_receive_tags_, peer_send_tags_, peer_receive_tags_;
  std::vector<std::byte> scratch_;
  std::array<int, kStages> open_{};  ///< outstanding requests of a stage
  Stage stage_ = kStart;
};

}  // namespace

std::unique_ptr<MpiOperation> make_node_operation(MpiWorld& world, const Exchange& exchange,
                                                  const Tensor& in, const Tensor& out,
                                                  const ExchangeLabel& label,
                                                  std::shared_ptr<Flow> flow) {
  return std::make_unique<NodeOperation>(world, exchange, in, out, label, std::move(flow));
}

}  // namespace starling::detail
