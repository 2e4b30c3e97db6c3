#include "comm/staged_transport.h"

#include <doctest/doctest.h>

#include "comm/fake_transport.h"
#include "core/forwarding_backend.h"
#include "kernels/optimizer.h"
#include "support.h"

namespace starling::test {
namespace {

/// Plays a device: it says that it is one, its tensors are its own, and it counts the copies from and to it.
class FakeDevice final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  DeviceType device() const override { return DeviceType::kCuda; }
  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    return std::make_shared<OwnStorage>(*this, ForwardingBackend::allocate(bytes));
  }
  void copy_from_host(const void* from, const Tensor& to) override {
    arrived += stream() == StreamKind::kCommunication;
    ForwardingBackend::copy_from_host(from, to);
  }
  void copy_to_host(const Tensor& from, void* to) override {
    sent += stream() == StreamKind::kCommunication;
    ForwardingBackend::copy_to_host(from, to);
  }
  int sent = 0, arrived = 0;

 protected:
  void around(std::string_view, const std::function<void()>& operation) override { operation(); }

 private:
  class OwnStorage final : public Storage {
   public:
    OwnStorage(Backend& backend, std::shared_ptr<Storage> inner) : Storage(backend, inner->data(), inner->bytes()), inner_(inner) {}

   private:
    std::shared_ptr<Storage> inner_;
  };
};

/// What every rank ends with when its bucket memory is a device's.
std::vector<std::vector<double>> run_on_devices(const Job& job, int ranks) {
  std::vector<std::vector<double>> results(static_cast<std::size_t>(ranks));
  std::vector<std::unique_ptr<Backend>> hosts;
  for (int r = 0; r < ranks; ++r) hosts.push_back(open_backend(DeviceType::kCpu, 1));
  FakeWorld world(ranks);
  world.run([&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    FakeDevice device(*hosts[r]);
    const auto staged = make_staged_transport(world.transport(transport.rank()));
    CHECK(staged->rank() == transport.rank());
    CHECK(staged->size() == ranks);
    CHECK(staged->name().find("host memory") != std::string::npos);
    results[r] = run_job(job, *staged, device);
    CHECK(device.sent > job.steps);
    CHECK(device.arrived > job.steps);
  });
  return results;
}

}  // namespace

TEST_CASE("comm/staged: a device's tensors over a transport of host memory give the bits of the host's") {
  for (const auto& [algorithm, topology, ranks] : {std::tuple{"gossip", R"({"type": "ring"})", 2},
                                                   {"gossip", R"({"type": "complete"})", 3},
                                                   {"gossip", R"({"type": "base-2"})", 3},
                                                   {"allreduce", R"({})", 3}}) {
    for (const bool in_backward : {true, false}) {
      CAPTURE(algorithm);
      CAPTURE(topology);
      Job job;
      job.algorithm = algorithm;
      job.topology = nlohmann::json::parse(topology);
      job.optimizer = {{"type", "adamw"}};
      job.in_backward = in_backward;
      job.finish_every = 2;
      job.resume_after = 3;
      CHECK(run_on_devices(job, ranks) == run_fake(job, ranks));
    }
  }
}

TEST_CASE("comm/staged: the host's tensors pass as they are") {
  FakeWorld world(2);
  world.run([&](Transport& transport) {
    const auto host = open_backend(DeviceType::kCpu, 1);
    {
      const auto staged = make_staged_transport(world.transport(transport.rank()));
      const Tensor values(*host, Shape{3}, DType::kFloat64);
      set_numbers(values, [&](std::int64_t i) { return static_cast<double>(i) + transport.rank(); });
      const Ticket ticket = staged->start_sum(values, values, {0, -1, -1});
      staged->wait(ticket);
      CHECK(numbers(values) == std::vector<double>{1.0, 3.0, 5.0});
      double one = 1.0;
      staged->sum(&one, 1);
      CHECK(one == 2.0);
    }
  });
}

}  // namespace starling::test
