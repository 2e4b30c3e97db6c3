#include "comm/shared/peer_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/flight.h"
#include "comm/shared/shared_buckets.h"
#include "comm/transports/checks.h"
#include "core/device_trace.h"
#include "core/trace.h"
#include "kernels/decode_sum.h"

namespace starling::detail {
namespace {

constexpr std::size_t kHead = 4096;  // of a block, for the counters
constexpr std::size_t kRemembered = 1024;

bool sums(const Exchange& exchange) { return exchange.kind == Exchange::Kind::kScatterSum; }

}  // namespace

/// An exchange in pieces. A piece has up to `elements_per_piece` elements of each part; a staging
/// buffer of a sum has one such range for each other rank.
struct PeerParts::Work {
  const Exchange& exchange;
  const Tensor &send, &receive;
  const ExchangeLabel& label;
  std::uint32_t before = 0;  ///< pieces of earlier exchanges
  std::int64_t elements_per_piece = 0, pieces = 0;

  std::uint32_t count(std::int64_t piece) const {
    return before + static_cast<std::uint32_t>(piece) + 1;
  }
  /// Elements of a member's part in this piece.
  std::int64_t elements(std::size_t member, std::int64_t piece) const {
    const std::int64_t part = exchange.parts[member + 1] - exchange.parts[member];
    return std::clamp<std::int64_t>(part - piece * elements_per_piece, 0, elements_per_piece);
  }
  /// Of the tensor that has all parts.
  Tensor slice(const Tensor& whole, std::size_t member, std::int64_t piece) const {
    return whole.slice(exchange.parts[member] + piece * elements_per_piece,
                       Shape{elements(member, piece)});
  }
};

std::unique_ptr<PeerParts> PeerParts::open(Backend& backend, Transport& transport,
                                           MemorySharing& sharing, double timeout_seconds,
                                           int replica, std::size_t piece_bytes,
                                           const std::vector<int>& local, std::string& refusal) {
  const int first = transport.rank() / replica * replica;
  std::vector<int> ranks;
  for (int rank = first; rank < first + replica; ++rank) ranks.push_back(rank);
  double apart = std::ranges::includes(local, ranks) ? 0.0 : 1.0;
  transport.world().max(&apart, 1);
  if (apart > 0.0) return nullptr;
  std::unique_ptr<PeerParts> parts(
      new PeerParts(backend, transport, sharing, timeout_seconds, std::move(ranks), piece_bytes));
  refusal = parts->blocks_.open(kHead + 2 * piece_bytes);
  if (!refusal.empty()) return nullptr;
  transport.world().barrier();  // all ranks' counters exist
  return parts;
}

PeerParts::PeerParts(Backend& backend, Transport& transport, MemorySharing& sharing,
                     double timeout_seconds, std::vector<int> ranks, std::size_t piece_bytes)
    : backend_(backend),
      transport_(transport),
      blocks_(backend, transport, sharing, timeout_seconds, std::move(ranks)),
      piece_bytes_(piece_bytes),
      own_index_(static_cast<std::size_t>(transport.rank() - blocks_.ranks().front())),
      others_(blocks_.ranks()) {
  std::erase(others_, transport.rank());
}

bool PeerParts::supports(const Exchange& exchange, const Tensor& send) const {
  return (sums(exchange) || exchange.kind == Exchange::Kind::kGather) &&
         exchange.group == blocks_.ranks() && &send.backend() == &backend_;
}

Tensor PeerParts::place(std::size_t member, std::uint32_t count, DType dtype) const {
  const std::shared_ptr<PeerBlock>& block = blocks_.blocks()[member];
  return {std::make_shared<BlockStorage<PeerBlock>>(
              backend_, block, kHead + (count % 2) * piece_bytes_, piece_bytes_),
          0, Shape{static_cast<std::int64_t>(piece_bytes_ / size_of(dtype))}, dtype};
}

Ticket PeerParts::start(const Exchange& exchange, const Tensor& send, const Tensor& receive,
                        const ExchangeLabel& label) {
  Work work{exchange, send, receive, label, count_};
  const auto ranges = static_cast<std::int64_t>(sums(exchange) ? others_.size() : 1);
  work.elements_per_piece =
      static_cast<std::int64_t>(piece_bytes_ / size_of(send.dtype())) / ranges / 32 * 32;
  for (std::size_t k = 0; k + 1 < exchange.parts.size(); ++k) {
    const std::int64_t part = exchange.parts[k + 1] - exchange.parts[k];
    work.pieces =
        std::max(work.pieces, (part + work.elements_per_piece - 1) / work.elements_per_piece);
  }
  count_ = work.count(work.pieces - 1);
  started_.push_back({count_, exchange, label});
  if (started_.size() > kRemembered) started_.pop_front();
  note_flight(FlightEvent::kStart, label, others_);
  blocks_.pulse().beat(Pulse::Doing::kPublished, label);

  const auto mark = [&](StreamKind stream) {
    const StreamScope scope(backend_, stream);
    return backend_.record();
  };
  const Event computed = mark(StreamKind::kCompute), updated = mark(StreamKind::kUpdate);
  const StreamScope scope(backend_, StreamKind::kCommunication);
  for (const Event event : {computed, updated}) backend_.wait(event);
  const TraceRange range("exchange", timeline_name(label));
  const DeviceSpan span(TraceLane::kDeviceExchange, "exchange", timeline_name(label));
  if (!sums(exchange)) {
    const Tensor own = receive.slice(exchange.parts[own_index_], send.shape());
    if (own.raw() != send.raw()) backend_.copy(send, own);
  }
  for (std::int64_t piece = 0; piece <= work.pieces; ++piece) {
    if (piece < work.pieces) stage(work, piece);
    if (piece > 0) consume(work, piece - 1);
  }
  under_way_.emplace(++last_, backend_.record());
  return last_;
}

bool PeerParts::done(Ticket ticket) const {
  return backend_.done(find_ticket(under_way_, ticket)->second);
}

void PeerParts::wait(Ticket ticket) {
  const auto it = find_ticket(under_way_, ticket);
  backend_.wait(it->second);
  under_way_.erase(it);
}

void PeerParts::stage(const Work& work, std::int64_t piece) {
  const std::uint32_t count = work.count(piece);
  blocks_.await(others_, 0, &DeviceCounts::released, count - 2, work.label.bucket,
                PeerWait::kPartReaders);
  const Tensor own = place(own_index_, count, work.send.dtype());
  if (!sums(work.exchange)) {
    if (const std::int64_t n = work.elements(own_index_, piece); n > 0)
      backend_.copy(work.send.slice(piece * work.elements_per_piece, Shape{n}),
                    own.slice(0, Shape{n}));
  } else {
    for (std::size_t k = 0; k < others_.size(); ++k) {
      const std::size_t member = k + (k >= own_index_);
      const std::int64_t n = work.elements(member, piece);
      if (n == 0) continue;
      backend_.copy(work.slice(work.send, member, piece),
                    own.slice(static_cast<std::int64_t>(k) * work.elements_per_piece, Shape{n}));
    }
  }
  blocks_.signal(0, &DeviceCounts::published, count);
}

void PeerParts::consume(const Work& work, std::int64_t piece) {
  const std::uint32_t count = work.count(piece);
  blocks_.await(others_, 0, &DeviceCounts::published, count, work.label.bucket, PeerWait::kParts);
  const std::int64_t own = work.elements(own_index_, piece);
  std::vector<Tensor> terms;
  for (std::size_t member = 0; member <= others_.size(); ++member) {
    const std::int64_t n = sums(work.exchange) ? own : work.elements(member, piece);
    if (n == 0) continue;
    if (member == own_index_) {
      if (sums(work.exchange)) terms.push_back(work.slice(work.send, own_index_, piece));
      continue;
    }
    const Tensor other = place(member, count, work.send.dtype());
    if (sums(work.exchange)) {
      const auto range = static_cast<std::int64_t>(own_index_ - (own_index_ > member));
      terms.push_back(other.slice(range * work.elements_per_piece, Shape{n}));
    } else {
      backend_.copy(other.slice(0, Shape{n}), work.slice(work.receive, member, piece));
    }
  }
  if (!terms.empty())
    weighted_sum(backend_, terms, std::vector<double>(terms.size(), 1.0),
                 work.receive.slice(piece * work.elements_per_piece, Shape{own}));
  blocks_.signal(0, &DeviceCounts::released, count);
}

void PeerParts::report(const PeerMemory::Loss& loss) const {
  const auto kind = static_cast<PeerWait>(loss.purpose.kind);
  if (kind != PeerWait::kParts && kind != PeerWait::kPartReaders) return;
  const auto of = std::ranges::find_if(started_, [&](const Started& started) {
    return static_cast<std::int32_t>(started.end - loss.wanted) >= 0;
  });
  const Started& started = of == started_.end() ? started_.back() : *of;
  const std::string which = describe(started.exchange, started.label);
  blocks_.report(loss,
                 kind == PeerWait::kParts
                     ? fmt::format("what rank {} sends in {}", loss.rank, which)
                     : fmt::format("rank {} to have read {}", loss.rank, which),
                 started.label);
}

}  // namespace starling::detail
