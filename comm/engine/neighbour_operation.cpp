#include <algorithm>
#include <chrono>
#include <limits>

#include "comm/engine/operation.h"
#include "comm/flight.h"
#include "comm/transports/checks.h"

namespace starling::detail {
namespace {

constexpr std::size_t kMaxPieces = 256;  // of one neighbour's buffer

class NeighbourOperation final : public WireOperation {
 public:
  NeighbourOperation(Wire& wire, const Exchange& exchange, const Tensor& send,
                     const std::vector<Tensor>& receive, const ExchangeLabel& label,
                     std::shared_ptr<Flow> flow)
      : WireOperation(describe(exchange, label), partners_of(&exchange, wire.size(), wire.rank()),
                      label, std::move(flow)),
        wire_(wire),
        requests_(wire.make_requests()),
        send_(send),
        receive_(receive),
        to_(exchange.send_to),
        from_(exchange.receive_from) {
    for (const int peer : to_) send_tags_.push_back(wire.next_send_tag(peer, label.lane));
    for (const int peer : from_) receive_tags_.push_back(wire.next_receive_tag(peer, label.lane));
  }

  bool advance() override {
    bool moved = false;
    if (!posted_) {
      post_receives();
      posted_ = moved = true;
    }
    if (requests_->test([&](int user) {
          if (user >= 0)
            note_sent(pieces_sent_[static_cast<std::size_t>(user)]);
          else if (flow_)
            note_arrival(static_cast<std::size_t>(-1 - user));
        }) > 0) {
      moved = true;
    }
    moved |= post_sends();
    if (requests_->empty() && all_sent()) finish();
    return moved;
  }

  std::vector<int> missing() const override {
    std::vector<int> peers = requests_->peers();
    for (std::size_t k = 0; k < sent_.size(); ++k) {
      if (sent_[k] < send_.bytes()) peers.push_back(to_[k]);
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Sent {
    int peer;
    Clock::time_point when;
    bool is_sample, whole;
  };
  std::size_t piece_bytes() const {
    const std::size_t total = send_.bytes();
    return std::min<std::size_t>(
        std::max(kPieceBytes, ((total + kMaxPieces - 1) / kMaxPieces + 4095) / 4096 * 4096),
        1u << 30);
  }
  std::size_t pieces() const { return (send_.bytes() + piece_bytes() - 1) / piece_bytes(); }
  void post_receives() {
    const std::size_t total = send_.bytes(), piece = piece_bytes();
    int user = -1;  // with a flow, -1 - (number of the piece among all neighbours')
    for (std::size_t k = 0; k < from_.size(); ++k) {
      for (std::size_t at = 0; at < total; at += piece) {
        requests_->receive(receive_[k].raw() + at, std::min(piece, total - at), from_[k],
                           {receive_tags_[k], at}, user);
        if (flow_) --user;
      }
    }
    sent_.assign(to_.size(), 0);
    if (flow_) {
      came_.assign(from_.size() * pieces(), false);
      whole_.assign(from_.size(), 0);
    }
  }
  /// A flow hears of what is whole from the start; the last, small piece may overtake those before
  /// it.
  void note_arrival(std::size_t number) {
    const std::size_t all = pieces(), k = number / all, before = whole_[k];
    came_[number] = true;
    while (whole_[k] < all && came_[k * all + whole_[k]]) ++whole_[k];
    if (whole_[k] > before) flow_->arrived(k, std::min(whole_[k] * piece_bytes(), send_.bytes()));
  }
  void note_sent(const Sent& piece) {
    const double seconds = std::chrono::duration<double>(Clock::now() - piece.when).count();
    wire_.window_to(piece.peer)
        .arrived(piece.whole ? seconds : std::numeric_limits<double>::infinity(), piece.is_sample);
  }
  bool all_sent() const {
    return std::all_of(sent_.begin(), sent_.end(),
                       [&](std::size_t bytes) { return bytes >= send_.bytes(); });
  }
  bool post_sends() {
    const std::size_t total = send_.bytes(), piece = piece_bytes();
    bool moved = false;
    for (std::size_t k = 0; k < to_.size(); ++k) {
      PieceWindow& window = wire_.window_to(to_[k]);
      while (sent_[k] < total && window.open() && may_send(std::min(total, sent_[k] + piece))) {
        pieces_sent_.push_back({to_[k], Clock::now(), window.sent(), sent_[k] + piece <= total});
        requests_->send(send_.raw() + sent_[k], std::min(piece, total - sent_[k]), to_[k],
                        {send_tags_[k], sent_[k]}, static_cast<int>(pieces_sent_.size()) - 1);
        sent_[k] += piece;
        moved = true;
      }
    }
    return moved;
  }

  Wire& wire_;
  std::unique_ptr<RequestSet> requests_;
  Tensor send_;
  std::vector<Tensor> receive_;
  std::vector<int> to_, from_, send_tags_, receive_tags_;
  std::vector<std::size_t> sent_;  ///< bytes posted, per receiver
  std::vector<Sent> pieces_sent_;
  std::vector<bool> came_;  ///< with a flow: by sender and piece
  /// With a flow: pieces that have arrived without a gap, per sender
  std::vector<std::size_t> whole_;
  bool posted_ = false;
};

}  // namespace

std::unique_ptr<WireOperation> make_neighbour_operation(Wire& wire, const Exchange& exchange,
                                                        const Tensor& send,
                                                        const std::vector<Tensor>& receive,
                                                        const ExchangeLabel& label,
                                                        std::shared_ptr<Flow> flow) {
  return std::make_unique<NeighbourOperation>(wire, exchange, send, receive, label,
                                              std::move(flow));
}

}  // namespace starling::detail
