#include <algorithm>
#include <array>
#include <cstring>

#include "comm/engine/operation.h"
#include "comm/flight.h"
#include "comm/transports/sums.h"

namespace starling::detail {
namespace {

/// A sum over a group, or a round over nodes; or, by parts, its scatter or its gather alone, where
/// a member's chunks are of its part. The buffer is cut into pieces, each piece into one chunk per
/// member of the group. Every member receives its chunk from all others (scatter), sums in rank
/// order, and sends the result to all others (gather). In a round over nodes the group is a node:
/// its members take the mean of their chunk, exchange that with their peers on other nodes
/// (between), and send the mix to the node, so that every number crosses the link between two nodes
/// once in each direction. A few pieces are under way at once; each phase of every pair goes in
/// piece order, as RequestSet asks for.
class GroupOperation final : public WireOperation {
 public:
  GroupOperation(Wire& wire, const Exchange& exchange, const Tensor& in, const Tensor& out,
                 std::string what, const ExchangeLabel& label, std::shared_ptr<Flow> flow)
      : WireOperation(std::move(what), partners_of(&exchange, wire.size(), wire.rank()), label,
                      std::move(flow)),
        wire_(wire),
        requests_(wire.make_requests()),
        exchange_(exchange),
        in_(in),
        out_(out),
        nodes_(exchange.kind == Exchange::Kind::kNodes),
        scatters_(exchange.kind != Exchange::Kind::kGather),
        gathers_(exchange.kind != Exchange::Kind::kScatterSum),
        members_(static_cast<std::int64_t>(exchange.group.size())),
        own_(std::find(exchange.group.begin(), exchange.group.end(), wire.rank()) -
             exchange.group.begin()),
        in_element_(static_cast<std::int64_t>(size_of(in.dtype()))),
        out_element_(static_cast<std::int64_t>(size_of(out.dtype()))),
        largest_chunk_(sum_chunk_bytes(members_) / out_element_),
        pieces_(count_pieces(exchange, in.elements(), largest_chunk_)),
        window_(nodes_ ? kNodePieces : kSumPieces),
        open_(static_cast<std::size_t>(window_)) {
    for (const int peer : exchange.group) {
      const bool own = peer == wire.rank();
      member_tags_.push_back({own ? 0 : wire.next_send_tag(peer, label.lane),
                              own ? 0 : wire.next_receive_tag(peer, label.lane)});
    }
    for (const int peer : exchange.send_to)
      peer_send_tags_.push_back(wire.next_send_tag(peer, label.lane));
    for (const int peer : exchange.receive_from)
      peer_receive_tags_.push_back(wire.next_receive_tag(peer, label.lane));
    sources_.resize(exchange.group.size());
  }

  bool advance() override {
    bool moved = false;
    if (scratch_.empty())
      scratch_ = wire_.take_scratch(
          static_cast<std::size_t>(window_ * places() * largest_chunk_ * in_element_));
    while (started_ < pieces_ && started_ - finished_ < window_ &&
           may_send(end_of(started_, in_element_, scatters_))) {
      scatter(started_++);
      moved = true;
    }
    if (requests_->test([&](int user) { --open_[index(user / kPhases)][index(user % kPhases)]; }) >
        0)
      moved = true;
    while (summed_ < started_ && is_through(summed_, kScatter)) {
      add_up(summed_++);
      moved = true;
    }
    while (mixed_ < summed_ && is_through(mixed_, kBetween)) {
      if (nodes_) mix(mixed_);
      if (gathers_) gather(mixed_);
      ++mixed_;
      moved = true;
    }
    while (finished_ < mixed_ && is_through(finished_, kGather)) {
      ++finished_;
      moved = true;
      if (flow_ && (finished_ == pieces_ || exchange_.parts.empty() || !gathers_))
        flow_->arrived(0, end_of(finished_ - 1, out_element_, gathers_));
    }
    if (finished_ == pieces_) {
      // The scratch goes back here, under the lock; the last owner may be any thread
      wire_.give_scratch(std::move(scratch_));
      finish();
    }
    return moved;
  }

  std::vector<int> missing() const override { return requests_->peers(); }

 private:
  enum Phase : int { kScatter, kBetween, kGather, kPhases };
  struct Span {
    std::int64_t first, count;
  };
  struct Tags {
    int send, receive;
  };

  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  static std::int64_t count_pieces(const Exchange& exchange, std::int64_t elements,
                                   std::int64_t chunk) {
    if (exchange.parts.empty()) {
      const std::int64_t most = chunk * std::ssize(exchange.group);
      return (elements + most - 1) / most;
    }
    std::int64_t longest = 0;
    for (std::size_t k = 1; k < exchange.parts.size(); ++k)
      longest = std::max(longest, exchange.parts[k] - exchange.parts[k - 1]);
    return (longest + chunk - 1) / chunk;
  }
  /// Bytes up to the end of a piece: of the `whole`, or of this rank's part.
  std::size_t end_of(std::int64_t piece, std::int64_t element, bool whole) const {
    std::int64_t end = std::min(in_.elements(), (piece + 1) * largest_chunk_ * members_);
    if (!exchange_.parts.empty()) {
      const Span last = chunk(piece, whole ? members_ - 1 : own_);
      end = last.first + last.count - (whole ? 0 : part(own_));
    }
    return static_cast<std::size_t>(end * element);
  }
  std::int64_t part(std::int64_t member) const { return exchange_.parts[index(member)]; }
  /// Where this rank's part begins in what has that part alone.
  std::int64_t own_first() const { return exchange_.parts.empty() ? 0 : part(own_); }
  /// Member m's chunk of a piece; the last piece's are smaller, and some may be empty.
  Span chunk(std::int64_t piece, std::int64_t member) const {
    if (!exchange_.parts.empty()) {
      const std::int64_t begin = std::min(part(member + 1), part(member) + piece * largest_chunk_);
      return {begin, std::min(largest_chunk_, part(member + 1) - begin)};
    }
    const std::int64_t first = piece * largest_chunk_ * members_;
    const std::int64_t count = std::min(largest_chunk_ * members_, in_.elements() - first);
    const std::int64_t each =
        std::min(largest_chunk_, ((count + members_ - 1) / members_ + 15) / 16 * 16);
    const std::int64_t begin = std::min(count, each * member);
    return {first + begin, std::min(each, count - begin)};
  }
  /// The number of chunks in a piece's scratch memory: received from the members (at this rank's
  /// own index: the node's mean), then from the peers, then the mean rounded to bf16. Chunks
  /// received as bf16 occupy the second half of their place, and are decoded in place.
  std::int64_t places() const {
    return members_ + std::ssize(exchange_.receive_from) + (exchange_.bf16_between ? 1 : 0);
  }
  std::byte* place(std::int64_t piece, std::int64_t k) {
    return scratch_.data() + ((piece % window_) * places() + k) * largest_chunk_ * in_element_;
  }
  std::size_t wire_bytes(Span span) const {
    return bytes(span, in_element_) / (exchange_.bf16_between ? 2 : 1);
  }
  std::byte* on_wire(std::byte* place, Span span) const {
    return place + (bytes(span, in_element_) - wire_bytes(span));
  }
  static std::byte* at(const Tensor& tensor, Span span, std::int64_t element) {
    return tensor.raw() + span.first * element;
  }
  static std::size_t bytes(Span span, std::int64_t element) {
    return static_cast<std::size_t>(span.count * element);
  }
  bool is_through(std::int64_t piece, Phase phase) const {
    return open_[index(piece % window_)][phase] == 0;
  }
  void send(std::int64_t piece, Phase phase, const std::byte* data, std::size_t count, int peer,
            int tag) {
    if (count == 0) return;
    requests_->send(data, count, peer, {tag, place_of(piece, phase)}, user(piece, phase));
  }
  void receive(std::int64_t piece, Phase phase, std::byte* data, std::size_t count, int peer,
               int tag) {
    if (count == 0) return;
    requests_->receive(data, count, peer, {tag, place_of(piece, phase)}, user(piece, phase));
  }
  static std::size_t place_of(std::int64_t piece, Phase phase) {
    return index(piece * kPhases + phase);
  }
  /// Counts a request of the phase; the result is passed back when the request completes.
  int user(std::int64_t piece, Phase phase) {
    ++open_[index(piece % window_)][phase];
    return static_cast<int>(piece % window_) * kPhases + phase;
  }
  /// Calls f(member) for all others, the next one first: not all send to the same one at first.
  template <class F>
  void for_others(const F& f) const {
    for (std::int64_t k = 1; k < members_; ++k) f((own_ + k) % members_);
  }

  void scatter(std::int64_t piece) {
    if (!scatters_) return;
    const Span mine = chunk(piece, own_);
    for_others([&](std::int64_t m) {
      receive(piece, kScatter, place(piece, m), bytes(mine, in_element_), exchange_.group[index(m)],
              member_tags_[index(m)].receive);
    });
    for (std::size_t k = 0; k < exchange_.receive_from.size(); ++k) {
      receive(piece, kBetween, on_wire(place(piece, members_ + static_cast<std::int64_t>(k)), mine),
              wire_bytes(mine), exchange_.receive_from[k], peer_receive_tags_[k]);
    }
    for_others([&](std::int64_t m) {
      const Span theirs = chunk(piece, m);
      send(piece, kScatter, at(in_, theirs, in_element_), bytes(theirs, in_element_),
           exchange_.group[index(m)], member_tags_[index(m)].send);
    });
  }

  void add_up(std::int64_t piece) {
    const Span mine = chunk(piece, own_);
    if (mine.count == 0 || !scatters_) return;
    for (std::int64_t m = 0; m < members_; ++m)
      sources_[index(m)] = m == own_ ? at(in_, mine, in_element_) : place(piece, m);
    std::byte* const mean = place(piece, own_);
    const Span in_out{mine.first - (gathers_ ? 0 : own_first()), mine.count};
    std::byte* const sum = nodes_ ? mean : at(out_, in_out, out_element_);
    sum_in_order(in_.dtype(), sources_, nullptr, mine.count, sum);
    if (!nodes_) return;
    const double share = 1.0 / static_cast<double>(members_);
    sum_in_order(in_.dtype(), {mean}, &share, mine.count, mean);
    std::byte* sent = mean;
    if (exchange_.bf16_between) {
      sent = on_wire(rounded_mean(piece), mine);
      encode_bf16(reinterpret_cast<const float*>(mean), mine.count, sent);
    }
    for (std::size_t k = 0; k < exchange_.send_to.size(); ++k)
      send(piece, kBetween, sent, wire_bytes(mine), exchange_.send_to[k], peer_send_tags_[k]);
  }

  std::byte* rounded_mean(std::int64_t piece) {
    return place(piece, members_ + std::ssize(exchange_.receive_from));
  }

  void mix(std::int64_t piece) {
    const Span mine = chunk(piece, own_);
    if (mine.count == 0) return;
    const auto decoded = [&](std::byte* place) {
      if (exchange_.bf16_between)
        decode_bf16(on_wire(place, mine), mine.count, reinterpret_cast<float*>(place));
      return place;
    };
    std::vector<const std::byte*> terms{place(piece, own_)};
    if (exchange_.bf16_between) terms.push_back(decoded(rounded_mean(piece)));
    for (std::int64_t k = 0; k < std::ssize(exchange_.receive_from); ++k)
      terms.push_back(decoded(place(piece, members_ + k)));
    in_node_order(exchange_, terms);
    sum_in_order(in_.dtype(), terms, node_weights(exchange_).data(), mine.count,
                 at(out_, mine, out_element_));
  }

  void gather(std::int64_t piece) {
    const Span mine = chunk(piece, own_);
    if (!scatters_) {
      const std::byte* const own = at(in_, {mine.first - own_first(), mine.count}, in_element_);
      if (own != at(out_, mine, out_element_))
        std::memcpy(at(out_, mine, out_element_), own, bytes(mine, out_element_));
    }
    for_others([&](std::int64_t m) {
      const Span theirs = chunk(piece, m);
      receive(piece, kGather, at(out_, theirs, out_element_), bytes(theirs, out_element_),
              exchange_.group[index(m)], member_tags_[index(m)].receive + 1);
    });
    for_others([&](std::int64_t m) {
      send(piece, kGather, at(out_, mine, out_element_), bytes(mine, out_element_),
           exchange_.group[index(m)], member_tags_[index(m)].send + 1);
    });
  }

  Wire& wire_;
  std::unique_ptr<RequestSet> requests_;
  const Exchange exchange_;
  const Tensor in_, out_;
  const bool nodes_, scatters_, gathers_;
  const std::int64_t members_, own_, in_element_, out_element_, largest_chunk_, pieces_, window_;
  std::vector<Tags> member_tags_;
  std::vector<int> peer_send_tags_, peer_receive_tags_;
  std::int64_t started_ = 0, summed_ = 0, mixed_ = 0, finished_ = 0;  ///< pieces
  /// By piece under way and phase: outstanding requests
  std::vector<std::array<int, kPhases>> open_;
  std::vector<std::byte> scratch_;
  std::vector<const std::byte*> sources_;
};

}  // namespace

std::unique_ptr<WireOperation> make_group_operation(Wire& wire, const Exchange& exchange,
                                                    const Tensor& in, const Tensor& out,
                                                    std::string what, const ExchangeLabel& label,
                                                    std::shared_ptr<Flow> flow) {
  return std::make_unique<GroupOperation>(wire, exchange, in, out, std::move(what), label,
                                          std::move(flow));
}

}  // namespace starling::detail
