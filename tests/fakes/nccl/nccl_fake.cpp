#include "tests/fakes/nccl/nccl_fake_state.h"

namespace starling {
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
