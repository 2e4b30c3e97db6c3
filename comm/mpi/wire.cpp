#include <mpi.h>

#include <cstring>
#include <utility>

#include "comm/engine/operation.h"
#include "comm/flight.h"
#include "comm/mpi/pulse.h"
#include "comm/mpi/ulfm.h"
#include "core/error.h"

namespace starling {
namespace detail {
namespace {

class MpiRequests final : public RequestSet {
 public:
  MpiRequests(MPI_Comm data, MpiPulse& pulse) : data_(data), pulse_(pulse) {}

 protected:
  void post_send(const std::byte* data, std::size_t bytes, int peer, MessageTag tag) override {
    requests_.push_back(MPI_REQUEST_NULL);
    mpi_check(
        MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag.tag, data_, &requests_.back()),
        "MPI_Isend");
  }
  void post_receive(std::byte* data, std::size_t bytes, int peer, MessageTag tag) override {
    requests_.push_back(MPI_REQUEST_NULL);
    mpi_check(
        MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag.tag, data_, &requests_.back()),
        "MPI_Irecv");
  }
  int test_some() override;

 private:
  MPI_Comm data_;
  MpiPulse& pulse_;
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

int MpiRequests::test_some() {
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                indices_.data(), statuses_.data());
  for (int i = 0; code == MPI_ERR_IN_STATUS && i < count; ++i) {
    int kind = 0;
    MPI_Error_class(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, &kind);
    if (kind != MPI_ERR_TRUNCATE) continue;
    fail_wrong_length(
        entries_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])].peer);
  }
  mpi_check(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED) return 0;
  for (int i = 0; i < count; ++i) {
    Entry& entry = entries_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
    entry.done = true;
    if (entry.receive) pulse_.heard(entry.peer);
  }
  if (count > 0)
    std::erase_if(requests_, [](MPI_Request request) { return request == MPI_REQUEST_NULL; });
  return count;
}

class MpiCall final : public WireCall {
 public:
  MpiCall(MPI_Comm control, Wire::Call kind, std::string what, std::vector<int> partners,
          std::vector<std::byte> mine, std::vector<int> counts, int root)
      : WireCall(std::move(what), std::move(partners)),
        control_(control),
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
  bool advance() override;
  const std::vector<std::byte>& bytes() const override {
    return kind_ == Wire::Call::kGather ? all_ : mine_;
  }

 private:
  MPI_Comm control_;
  Wire::Call kind_;
  std::vector<std::byte> mine_, all_;
  std::vector<int> counts_, offsets_;
  int root_;
  bool posted_ = false;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

bool MpiCall::advance() {
  const bool posted = std::exchange(posted_, true);
  if (!posted) {
    switch (kind_) {
      case Wire::Call::kBarrier:
        mpi_check(MPI_Ibarrier(control_, &request_), "MPI_Ibarrier");
        break;
      case Wire::Call::kGather:
        mpi_check(
            MPI_Iallgatherv(mine_.data(), static_cast<int>(mine_.size()), MPI_BYTE, all_.data(),
                            counts_.data(), offsets_.data(), MPI_BYTE, control_, &request_),
            "MPI_Iallgatherv");
        break;
      case Wire::Call::kBroadcast:
        mpi_check(MPI_Ibcast(mine_.data(), static_cast<int>(mine_.size()), MPI_BYTE, root_,
                             control_, &request_),
                  "MPI_Ibcast");
        break;
    }
  }
  int flag = 0;
  mpi_check(MPI_Test(&request_, &flag, MPI_STATUS_IGNORE), "MPI_Test");
  if (flag) finish();
  return flag || !posted;
}

class MpiWire final : public Wire {
 public:
  explicit MpiWire(MpiPulse& pulse) : pulse_(pulse) {
    const std::scoped_lock lock(mpi_lock());
    mpi_check(MPI_Comm_dup(world_communicator(), &data_), "MPI_Comm_dup");
    mpi_check(MPI_Comm_dup(world_communicator(), &control_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
    int rank = 0, size = 1, local_rank = 0, local_size = 1;
    MPI_Comm_rank(data_, &rank);
    MPI_Comm_size(data_, &size);
    MPI_Comm local = MPI_COMM_NULL;
    mpi_check(MPI_Comm_split_type(data_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local),
              "MPI_Comm_split_type");
    MPI_Comm_rank(local, &local_rank);
    MPI_Comm_size(local, &local_size);
    MPI_Comm_free(&local);
    set_ranks(rank, size, local_rank, local_size);
  }
  ~MpiWire() override {
    if (MpiPulse::abandoned()) return;
    const std::scoped_lock lock(mpi_lock());
    MPI_Comm_free(&data_);
    MPI_Comm_free(&control_);
  }

  std::string name() const override { return "mpi"; }
  std::recursive_timed_mutex& lock() override { return mpi_lock(); }
  std::unique_ptr<RequestSet> make_requests() override {
    return std::make_unique<MpiRequests>(data_, pulse_);
  }
  std::shared_ptr<WireCall> make_call(Call kind, std::string what, std::vector<std::byte> mine,
                                      std::vector<int> counts, int root) override {
    return std::make_shared<MpiCall>(control_, kind, std::move(what),
                                     partners_of(nullptr, size(), rank()), std::move(mine),
                                     std::move(counts), root);
  }
  bool poll() override {
    pulse_.poll();
    return false;
  }
  void ask(int rank) override { pulse_.ask(rank); }
  void note_started(const ExchangeLabel& label) override { pulse_.note_started(label); }
  AwaitedRank status_of(int rank) const override {
    return {rank, pulse_.seconds_since(rank), pulse_.doing(rank), true, pulse_.host(rank)};
  }
  void revoke() override {
    detail::revoke(data_);
    detail::revoke(control_);
  }
  bool abandon() override {
    MpiPulse::abandoned() = true;
    return true;
  }

 private:
  MpiPulse& pulse_;
  MPI_Comm data_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL;
};

}  // namespace
}  // namespace detail

std::unique_ptr<Transport> make_mpi_transport(double timeout_seconds) {
  detail::MpiPulse* const pulse = detail::MpiPulse::instance();
  require(pulse != nullptr, "mpi", "a transport over MPI needs an MpiSession of several ranks");
  return detail::make_wire_transport(std::make_unique<detail::MpiWire>(*pulse), timeout_seconds);
}

}  // namespace starling
