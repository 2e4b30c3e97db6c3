#include "comm/mpi/operation.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "comm/flight.h"
#include "comm/transports/checks.h"
#include "core/error.h"

namespace starling::detail {
namespace {

constexpr std::size_t kMaxPieces = 256;  // of one neighbour's buffer
// operations of a lane between two ranks under way at once; tags stay below 32768
constexpr std::uint32_t kTagCycle = 4096;

int tag_of(std::uint32_t sequence, Lane lane) {
  return static_cast<int>(sequence % kTagCycle + kTagCycle * static_cast<std::uint32_t>(lane)) * 2;
}

}  // namespace

MpiWorld::MpiWorld(MpiPulse& the_pulse) : pulse(the_pulse) {
  mpi_check(MPI_Comm_dup(world_communicator(), &data), "MPI_Comm_dup");
  mpi_check(MPI_Comm_dup(world_communicator(), &control), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(data, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(control, MPI_ERRORS_RETURN);
  MPI_Comm_rank(data, &rank);
  MPI_Comm_size(data, &size);
  MPI_Comm local = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split_type(data, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local),
            "MPI_Comm_split_type");
  MPI_Comm_rank(local, &local_rank);
  MPI_Comm_size(local, &local_size);
  MPI_Comm_free(&local);
  for (auto& counts : sent_) counts.resize(static_cast<std::size_t>(size));
  for (auto& counts : received_) counts.resize(static_cast<std::size_t>(size));
  windows_.resize(static_cast<std::size_t>(size));
}

MpiWorld::~MpiWorld() {
  if (MpiPulse::abandoned()) return;
  MPI_Comm_free(&data);
  MPI_Comm_free(&control);
}

int MpiWorld::next_send_tag(int peer, Lane lane) {
  return tag_of(sent_[static_cast<std::size_t>(lane)][static_cast<std::size_t>(peer)]++, lane);
}
int MpiWorld::next_receive_tag(int peer, Lane lane) {
  return tag_of(received_[static_cast<std::size_t>(lane)][static_cast<std::size_t>(peer)]++, lane);
}

std::vector<std::byte> MpiWorld::take_scratch(std::size_t bytes) {
  // The largest first: buckets repeat, so every request soon finds memory that fits.
  const auto largest =
      std::max_element(scratch_.begin(), scratch_.end(),
                       [](const auto& a, const auto& b) { return a.size() < b.size(); });
  std::vector<std::byte> scratch;
  if (largest != scratch_.end()) {
    scratch = std::move(*largest);
    scratch_.erase(largest);
  }
  if (scratch.size() < bytes) scratch.resize(bytes);
  return scratch;
}

void RequestSet::send(const std::byte* data, std::size_t bytes, int peer, int tag, int user) {
  requests_.push_back(MPI_REQUEST_NULL);
  entries_.push_back({peer, false, user});
  mpi_check(
      MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, world_.data, &requests_.back()),
      "MPI_Isend");
}

void RequestSet::receive(std::byte* data, std::size_t bytes, int peer, int tag, int user) {
  requests_.push_back(MPI_REQUEST_NULL);
  entries_.push_back({peer, true, user});
  mpi_check(
      MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, world_.data, &requests_.back()),
      "MPI_Irecv");
}

int RequestSet::test_some() {
  if (requests_.empty()) return 0;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                indices_.data(), statuses_.data());
  for (int i = 0; code == MPI_ERR_IN_STATUS && i < count; ++i) {
    int kind = 0;
    MPI_Error_class(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, &kind);
    if (kind != MPI_ERR_TRUNCATE) continue;
    fail(ExitCode::kLost, "mpi",
         "the message that rank {} has sent is longer than what this rank awaits: ranks exchange "
         "different things, such as where one leaves "
         "an exchange out; `starling-doctor blame` says what each issued",
         entries_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])].peer);
  }
  mpi_check(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED) return 0;
  for (int i = 0; i < count; ++i) {
    const Entry& entry = entries_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
    if (entry.receive) world_.pulse.heard(entry.peer);
  }
  return count;
}

void RequestSet::compact() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    entries_[kept++] = entries_[i];
  }
  requests_.resize(kept);
  entries_.resize(kept);
}

std::vector<int> RequestSet::peers() const {
  std::vector<int> peers;
  for (const Entry& entry : entries_) peers.push_back(entry.peer);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

namespace {

class NeighbourOperation final : public MpiOperation {
 public:
  NeighbourOperation(MpiWorld& world, const Exchange& exchange, const Tensor& send,
                     const std::vector<Tensor>& receive, const ExchangeLabel& label,
                     std::shared_ptr<Flow> flow)
      : MpiOperation(describe(exchange, label), partners_of(&exchange, world.size, world.rank),
                     label, std::move(flow)),
        world_(world),
        requests_(world),
        send_(send),
        receive_(receive),
        to_(exchange.send_to),
        from_(exchange.receive_from) {
    for (const int peer : to_) send_tags_.push_back(world.next_send_tag(peer, label.lane));
    for (const int peer : from_) receive_tags_.push_back(world.next_receive_tag(peer, label.lane));
  }

  bool advance() override {
    bool moved = false;
    if (!posted_) {
      post_receives();
      posted_ = moved = true;
    }
    if (requests_.test([&](int user) {
          if (user >= 0)
            note_sent(pieces_sent_[static_cast<std::size_t>(user)]);
          else if (flow_)
            note_arrival(static_cast<std::size_t>(-1 - user));
        }) > 0) {
      moved = true;
    }
    moved |= post_sends();
    if (requests_.empty() && all_sent()) finish();
    return moved;
  }

  std::vector<int> missing() const override {
    std::vector<int> peers = requests_.peers();
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
    bool tells, whole;
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
        requests_.receive(receive_[k].raw() + at, std::min(piece, total - at), from_[k],
                          receive_tags_[k], user);
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
    world_.window_to(piece.peer)
        .arrived(piece.whole ? seconds : std::numeric_limits<double>::infinity(), piece.tells);
  }
  bool all_sent() const {
    return std::all_of(sent_.begin(), sent_.end(),
                       [&](std::size_t bytes) { return bytes >= send_.bytes(); });
  }
  bool post_sends() {
    const std::size_t total = send_.bytes(), piece = piece_bytes();
    bool moved = false;
    for (std::size_t k = 0; k < to_.size(); ++k) {
      PieceWindow& window = world_.window_to(to_[k]);
      while (sent_[k] < total && window.open() && may_send(std::min(total, sent_[k] + piece))) {
        pieces_sent_.push_back({to_[k], Clock::now(), window.sent(), sent_[k] + piece <= total});
        requests_.send(send_.raw() + sent_[k], std::min(piece, total - sent_[k]), to_[k],
                       send_tags_[k], static_cast<int>(pieces_sent_.size()) - 1);
        sent_[k] += piece;
        moved = true;
      }
    }
    return moved;
  }

  MpiWorld& world_;
  RequestSet requests_;
  Tensor send_;
  std::vector<Tensor> receive_;
  std::vector<int> to_, from_, send_tags_, receive_tags_;
  std::vector<std::size_t> sent_;  ///< bytes posted, per receiver
  std::vector<Sent> pieces_sent_;
  std::vector<bool> came_;  ///< with a flow: by sender and piece
  /// With a flow: pieces that have come without a gap, per sender
  std::vector<std::size_t> whole_;
  bool posted_ = false;
};

}  // namespace

std::unique_ptr<MpiOperation> make_neighbour_operation(MpiWorld& world, const Exchange& exchange,
                                                       const Tensor& send,
                                                       const std::vector<Tensor>& receive,
                                                       const ExchangeLabel& label,
                                                       std::shared_ptr<Flow> flow) {
  return std::make_unique<NeighbourOperation>(world, exchange, send, receive, label,
                                              std::move(flow));
}

MpiControl::MpiControl(MpiWorld& world, Kind kind, std::string what, std::vector<std::byte> mine,
                       std::vector<int> counts, int root)
    : MpiOperation(std::move(what), partners_of(nullptr, world.size, world.rank)),
      world_(world),
      kind_(kind),
      mine_(std::move(mine)),
      counts_(std::move(counts)),
      root_(root) {
  int total = 0;
  for (const int count : counts_) {
    offsets_.push_back(total);
    total += count;
  }
  all_.resize(static_cast<std::size_t>(total));
}

bool MpiControl::advance() {
  const bool posted = std::exchange(posted_, true);
  if (!posted) {
    switch (kind_) {
      case Kind::kBarrier:
        mpi_check(MPI_Ibarrier(world_.control, &request_), "MPI_Ibarrier");
        break;
      case Kind::kGather:
        mpi_check(
            MPI_Iallgatherv(mine_.data(), static_cast<int>(mine_.size()), MPI_BYTE, all_.data(),
                            counts_.data(), offsets_.data(), MPI_BYTE, world_.control, &request_),
            "MPI_Iallgatherv");
        break;
      case Kind::kBroadcast:
        mpi_check(MPI_Ibcast(mine_.data(), static_cast<int>(mine_.size()), MPI_BYTE, root_,
                             world_.control, &request_),
                  "MPI_Ibcast");
        break;
    }
  }
  int flag = 0;
  mpi_check(MPI_Test(&request_, &flag, MPI_STATUS_IGNORE), "MPI_Test");
  if (flag) finish();
  return flag || !posted;
}

}  // namespace starling::detail
