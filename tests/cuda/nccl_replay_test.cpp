#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/transport.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/cuda/graph_job.h"
#include "tests/cuda/nccl_world.h"

// What the host waits for in a step over NCCL: nothing in a replayed one.
namespace starling::tests {
namespace {

using nlohmann::json;

struct Calls {
  std::atomic<std::uint64_t> groups{0}, settling{0};  ///< settling: questions of the rank's own thread whether a communicator is busy
};

/// Counts a rank's calls.
class CountingNccl final : public Nccl {
 public:
  CountingNccl(std::unique_ptr<Nccl> inner, Calls& calls) : inner_(std::move(inner)), calls_(calls) {}

  std::string version() const override { return inner_->version(); }
  std::string device() override { return inner_->device(); }
  NcclId make_id() override { return inner_->make_id(); }
  NcclComm init(const NcclId& id, int ranks, int rank, int max_ctas) override { return inner_->init(id, ranks, rank, max_ctas); }
  void split(NcclComm parent, int color, int key, NcclComm& joined) override { inner_->split(parent, color, key, joined); }
  NcclState state(NcclComm comm) override {
    if (std::this_thread::get_id() == rank_) ++calls_.settling;
    return inner_->state(comm);
  }
  std::string error(NcclComm comm) override { return inner_->error(comm); }
  void group_start() override { inner_->group_start(); }
  void group_end() override {
    ++calls_.groups;
    inner_->group_end();
  }
  void send(const void* from, std::size_t bytes, int peer, NcclComm comm, void* stream) override {
    inner_->send(from, bytes, peer, comm, stream);
  }
  void receive(void* to, std::size_t bytes, int peer, NcclComm comm, void* stream) override {
    inner_->receive(to, bytes, peer, comm, stream);
  }
  void all_reduce(const void* from, void* to, std::size_t count, DType dtype, NcclComm comm, void* stream) override {
    inner_->all_reduce(from, to, count, dtype, comm, stream);
  }
  void reduce_scatter(const void* from, void* to, std::size_t count, DType dtype, NcclComm comm, void* stream) override {
    inner_->reduce_scatter(from, to, count, dtype, comm, stream);
  }
  void all_gather(const void* from, void* to, std::size_t count, DType dtype, NcclComm comm, void* stream) override {
    inner_->all_gather(from, to, count, dtype, comm, stream);
  }
  void* register_buffer(NcclComm comm, void* data, std::size_t bytes) override { return inner_->register_buffer(comm, data, bytes); }
  void deregister_buffer(NcclComm comm, void* handle) noexcept override { inner_->deregister_buffer(comm, handle); }
  void destroy(NcclComm comm) noexcept override { inner_->destroy(comm); }
  void abort(NcclComm comm) noexcept override { inner_->abort(comm); }

 private:
  std::unique_ptr<Nccl> inner_;
  Calls& calls_;
  std::thread::id rank_ = std::this_thread::get_id();
};

struct Counted {
  std::uint64_t groups = 0, settling = 0, host_waits = 0, launches = 0;
};

/// Of all ranks, over `steps` steps after the first graphs were launched.
Counted count(const json& config, int ranks, std::int64_t steps) {
  register_builtins();
  FakeNccl nccl(ranks);
  FakeWorld control(ranks, {});
  std::vector<Calls> calls(static_cast<std::size_t>(ranks));
  Counted before, after;
  const auto totals = [&] {
    Counted sum;
    for (const Calls& each : calls) {
      sum.groups += each.groups;
      sum.settling += each.settling;
    }
    const cuda::RuntimeCounters runtime = cuda::runtime_counters();
    sum.host_waits = runtime.host_waits;
    sum.launches = runtime.graph_launches;
    return sum;
  };
  control.run([&](Transport& end) {
    const int rank = end.rank();
    cuda::CudaBackend backend(0, false, false, true);
    const auto transport =
        make_nccl_transport(control.transport(rank), backend,
                            std::make_unique<CountingNccl>(nccl.open(rank), calls[static_cast<std::size_t>(rank)]), {20.0, 0, 0.01});
    const RankLayout site{ranks, ranks};
    TrainConfig read = read_train_config(config, "test", site);
    read.compute = read.precision == "bf16" ? DType::kBFloat16 : read.precision == "fp16" ? DType::kFloat16 : read.dtype;
    read.dataset->open();
    const ShapeTrace trace = trace_shapes(read);
    {
      Trainer trainer(read, site, trace, backend, *transport);
      trainer.initialise();
      for (std::int64_t step = 0; step < trainer.graphs().warm_up_steps() + 4; ++step) trainer.step();
      transport->world().barrier();
      if (rank == 0) before = totals();
      transport->world().barrier();
      for (std::int64_t step = 0; step < steps; ++step) trainer.step();
      transport->world().barrier();
      if (rank == 0) after = totals();
      transport->world().barrier();
      trainer.finish();
    }
    read.model.reset();
  });
  return {after.groups - before.groups, after.settling - before.settling, after.host_waits - before.host_waits,
          after.launches - before.launches};
}

}  // namespace

TEST_CASE(
    "nccl/replay: in replayed steps the host calls NCCL never and waits for nothing, in fp16 neither; issued steps ask once a group") {
  constexpr std::uint64_t kRanks = 2, kSteps = 6;
  for (const char* algorithm : {"gossip", "allreduce"}) {
    for (const char* precision : {"bf16", "fp16"}) {
      CAPTURE(std::string(algorithm));
      CAPTURE(std::string(precision));
      const json config = with(graph_config(1000), {{"precision", precision},
                                                    {"log_every", 1000},
                                                    {"batch_size", 2},
                                                    {"data", {{"limit", 96}}},
                                                    {"sync", {{"algorithm", algorithm}}}});
      const Counted replayed = count(config, kRanks, kSteps);
      CHECK(replayed.launches == kRanks * kSteps);
      CHECK(replayed.groups == 0);
      CHECK(replayed.settling == 0);
      CHECK(replayed.host_waits == 0);
      const Counted issued = count(with(config, {{"cuda_graphs", false}}), kRanks, kSteps);
      CHECK(issued.launches == 0);
      CHECK(issued.groups > 0);
      CHECK(issued.settling >= issued.groups);
    }
  }
}

}  // namespace starling::tests
