#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "comm/algorithms/builtin.h"
#include "comm/transports/forwarding.h"
#include "core/trace.h"
#include "kernels/open_backend.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/support/numbers_of_ranks.h"

using namespace starling;
using nlohmann::json;
using test::Job;
using test::run_fake;

namespace {

/// Notes sums that start as +, and waits as -. Rank 1 begins where rank 0 has started `held` sums:
/// none of rank 0's is over before.
class Noting final : public ForwardingTransport {
 public:
  Noting(Transport& of, std::atomic<int>& started, int held)
      : ForwardingTransport(of), started_(started), held_(held) {}
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (rank() == 1 && started_ < held_ && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
    }
    notes += '+';
    const Ticket ticket = ForwardingTransport::start_sum(in, out, label, std::move(flow));
    started_ += rank() == 0 ? 1 : 0;
    return ticket;
  }
  void wait(Ticket ticket) override {
    notes += '-';
    ForwardingTransport::wait(ticket);
  }
  std::string notes;

 private:
  std::atomic<int>& started_;
  int held_;
};

/// Calls a function when a wait is over, and before what has come can be used.
class AfterWaits final : public ForwardingTransport {
 public:
  AfterWaits(Transport& of, std::function<void()> after)
      : ForwardingTransport(of), after_(std::move(after)) {}
  void wait(Ticket ticket) override {
    ForwardingTransport::wait(ticket);
    after_();
  }

 private:
  std::function<void()> after_;
};

/// The first two states of all buckets, diloco's anchor and outer momentum.
std::vector<std::vector<double>> outer_states(const std::vector<Bucket>& buckets) {
  std::vector<std::vector<double>> all;
  for (const Bucket& bucket : buckets) {
    for (const std::size_t k : {0, 1}) all.push_back(test::numbers(bucket.sync[k].numbers));
  }
  return all;
}

}  // namespace

// So that where a rank is lost meanwhile, each of the others has taken the outer step or has not.
TEST_CASE("comm/algorithm: diloco's anchors change when all of an outer step's means have come") {
  for (const json& more : {json::object(), json{{"fragments", 2}, {"delay", 1}}}) {
    for (const char* exchange : {"fp32", "int8", "sparse"}) {
      CAPTURE(more.dump());
      CAPTURE(exchange);
      Job job;
      job.algorithm = {{"type", "diloco"}, {"period", 4}};
      job.algorithm.update(more);
      job.exchange = exchange;
      job.steps = 8;
      std::atomic<int> changes{0};
      FakeWorld(2).run([&](Transport& fake, Backend& backend) {
        const std::vector<Bucket>* of = nullptr;
        std::vector<std::vector<double>> before;
        AfterWaits transport(fake, [&] {
          if (of) CHECK(outer_states(*of) == before);
        });
        Job own = job;
        own.after_step = [&](int, int, const std::vector<Bucket>& buckets) {
          of = &buckets;
          const auto now = outer_states(buckets);
          if (!before.empty() && now != before) ++changes;
          before = now;
        };
        run_job(own, transport, backend);
      });
      CHECK(changes >= 2 * 2);
    }
  }
}

TEST_CASE(
    "comm/algorithm: without overlap a bucket's sum is waited for before the next one's starts") {
  Job job;
  job.algorithm = "allreduce";
  job.steps = 2;
  for (const bool overlap : {true, false}) {
    job.overlap = overlap;
    std::atomic<int> started{0};
    FakeWorld(2).run([&](Transport& transport, Backend& backend) {
      Noting noting(transport, started, overlap ? 2 : 0);
      test::run_job(job, noting, backend);
      if (transport.rank() == 0 || !overlap) {
        CHECK((noting.notes.find("++") != std::string::npos) == overlap);
      }
    });
  }
}

TEST_CASE(
    "comm/algorithm: a skipped step leaves an optimizer as if it had not been, and a power of two "
    "as loss scale changes no bit") {
  for (const bool per_bucket : {false, true}) {
    Job job;
    job.optimizer = {{"type", "accum_adamw"}, {"weight_decay", 0.1}, {"accum_iter", 2}};
    job.in_backward = false;
    job.clip = {2.0, per_bucket};
    job.steps = 6;
    const auto expected = run_fake(job, 1);
    CHECK(run_fake(job, 1) == expected);
    job.check_overflow = true;
    CHECK(run_fake(job, 1) == expected);
    job.loss_scale = 65536;
    CHECK(run_fake(job, 1) == expected);
    job.steps = 8;
    job.overflows = {{0, 0}, {0, 3}};
    CHECK(run_fake(job, 1) == expected);
    job.check_overflow = false;
    CHECK(run_fake(job, 1) != expected);
  }
}

TEST_CASE("comm/algorithm: the low-precision copy follows every update") {
  for (const DType compute : {DType::kBFloat16, DType::kFloat16}) {
    for (const char* algorithm : {"gossip", "allreduce"}) {
      Job job;
      job.algorithm = algorithm;
      job.optimizer = {{"type", "adamw"}, {"weight_decay", 0.1}};
      const auto expected = run_fake(job, 2);
      job.compute = compute;
      CHECK(run_fake(job, 2) == expected);
    }
  }
}

TEST_CASE(
    "comm/algorithm: a bucket's own norm clips in either mode, and to the global one where there "
    "is one bucket") {
  Job job;
  job.topology = {{"type", "one-peer-exp"}};
  job.clip = {2.0, true};
  const auto in_backward = run_fake(job, 4);
  job.in_backward = false;
  CHECK(run_fake(job, 4) == in_backward);
  // But for the order of an fp64 sum.
  job.bucket_bytes = 1e9;
  const auto one_bucket = run_fake(job, 4);
  job.clip.per_bucket = false;
  CHECK(test::largest_difference(run_fake(job, 4), one_bucket) < 1e-6);
  CHECK(one_bucket != in_backward);
}

TEST_CASE("comm/algorithm: a step after a load without resume is refused") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto transport = make_single_transport();
  register_builtin_algorithms();
  test::TinyModel model({Shape{4}});
  const BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, 1);
  std::vector<Bucket> buckets = make_buckets(plan, *backend, DType::kFloat32, 0, false);
  const auto rule = test::make_rule("sgd", nlohmann::json::object());
  const auto mixer = transport->make_mixer(*backend);
  const auto gossip = make_algorithm(algorithm_of("gossip"), {.backend = *backend,
                                                              .transport = *transport,
                                                              .mixer = *mixer,
                                                              .rule = *rule,
                                                              .buckets = buckets});
  gossip->begin({3, 4, 1.0, 0.1});
  CHECK(test::error_text([&] { gossip->bucket_ready(0); }).find("resume(3)") != std::string::npos);
  gossip->resume(3);
  gossip->bucket_ready(0);
  gossip->backward_done();
}

TEST_CASE(
    "comm/algorithm: hosts of unlike numbers of ranks have no number to a node, and all ranks say "
    "so") {
  FakeWorld world(3, {.ranks_per_host = 2});
  world.run([](Transport& transport) {
    const auto backend = open_backend(DeviceType::kCpu, 1);
    const auto mixer = transport.make_mixer(*backend);
    const auto rule = test::make_rule("sgd", nlohmann::json::object());
    std::vector<Bucket> buckets;
    const std::string text = test::error_text([&] {
      ranks_per_node({.backend = *backend,
                      .transport = transport,
                      .mixer = *mixer,
                      .rule = *rule,
                      .buckets = buckets});
    });
    CHECK(text.find("is not given, and hosts have 1 to 2 of the 3 ranks; give a number that "
                    "divides them") != std::string::npos);
  });
}

TEST_CASE("comm/algorithm: exchanges and updates show on the timeline with their bucket") {
  Job job;
  job.steps = 2;
  job.bucket_bytes = 1e9;
  std::string events;
  FakeWorld(2).run([&](Transport& transport, Backend& backend) {
    Tracer tracer(transport.rank());
    Tracer::install(&tracer);
    test::run_job(job, transport, backend);
    Tracer::install(nullptr);
    if (transport.rank() == 0) events = tracer.events({});
  });
  CHECK(events.find("update bucket 0") != events.npos);
  CHECK(events.find("exchange bucket 0") != events.npos);
}
