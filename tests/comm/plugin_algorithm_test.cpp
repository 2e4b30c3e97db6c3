#include <doctest/doctest.h>

#include <tuple>

#include "core/error.h"
#include "examples/plugin/slow_average.h"
#include "kernels/open_backend.h"
#include "plain_families.h"
#include "support.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/support/numbers_of_ranks.h"

// An algorithm with settings and states of its own, as a plug-in makes it.

using namespace starling;
using test::Job;
using test::run_fake;

namespace {

void register_once() {
  register_builtin_algorithms();
  static const bool done = [] {
    algorithms().add("slow_average", mine::plan_slow_average, "");
    return true;
  }();
  static_cast<void>(done);
}

Job slow_job(int period, double momentum) {
  register_once();
  Job job;
  job.algorithm = {{"type", "slow_average"}, {"period", period}, {"momentum", momentum}};
  job.dtype = DType::kFloat64;
  job.start_apart = true;
  job.steps = 11;
  return job;
}

std::string error_of(const nlohmann::json& value) {
  return test::error_text([&] { algorithm_of(value); });
}

}  // namespace

TEST_CASE("comm/plugin_algorithm: settings and states do what its formulas say") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& [period, momentum, lr] :
         {std::tuple{1, 0.5, 0.1}, {3, 0.0, 0.1}, {4, 0.8, 0.1}, {3, 0.5, 0.0}, {12, 0.5, 0.1}}) {
      for (const bool in_backward : {true, false}) {
        Job job = slow_job(period, momentum);
        job.lr = lr;
        job.in_backward = in_backward;
        job.overflows = {{ranks - 1, 2}};
        job.check_overflow = !in_backward;
        if (in_backward) job.overflows.clear();
        Job plain = job;  // its formulas are SlowMo's
        plain.algorithm["type"] = "slowmo";
        CAPTURE(ranks);
        CAPTURE(period);
        CAPTURE(momentum);
        CHECK(test::largest_difference(run_fake(job, ranks), test::run_plain_family(plain, ranks)) <
              1e-12);
      }
    }
  }
}

TEST_CASE(
    "comm/plugin_algorithm: what a resumed run finds in its buckets is all that it needs, to the "
    "bit") {
  const auto straight = run_fake(slow_job(4, 0.5), 3);
  for (const int after : {2, 4, 7}) {
    Job job = slow_job(4, 0.5);
    job.resume_after = after;
    CHECK(run_fake(job, 3) == straight);
  }
}

TEST_CASE(
    "comm/algorithm: every bucket has the states that the plan declares, zero, and keeps them when "
    "the algorithm is made again") {
  register_builtin_algorithms();
  AlgorithmPlan plan = algorithm_of("allreduce");
  plan.states = {{"one"}, {"two", 2, DType::kFloat64}};
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto transport = make_single_transport();
  const auto rule = test::make_rule("sgd", nlohmann::json::object());
  test::TinyModel model({Shape{4}, Shape{40}});
  const BucketPlan layout = plan_buckets(model.order, {}, DType::kFloat32, 1);
  std::vector<Bucket> buckets = make_buckets(layout, *backend, DType::kFloat32, 0, false);
  const auto mixer = transport->make_mixer(*backend);
  const AlgorithmSite site{.backend = *backend,
                           .transport = *transport,
                           .mixer = *mixer,
                           .rule = *rule,
                           .buckets = buckets};
  make_algorithm(plan, site);
  REQUIRE(buckets.size() == 2);
  for (const Bucket& bucket : buckets) {
    REQUIRE(bucket.sync.size() == 3);
    CHECK(bucket.sync[0].name == "one");
    CHECK(bucket.sync[1].name == "two.0");
    CHECK(bucket.sync[2].name == "two.1");
    CHECK(bucket.sync[0].numbers.dtype() == DType::kFloat32);
    CHECK(bucket.sync[2].numbers.dtype() == DType::kFloat64);
    for (const SyncState& state : bucket.sync) {
      CHECK(state.numbers.elements() == bucket.layout->elements);
      for (const double value : test::numbers(state.numbers)) CHECK(value == 0.0);
    }
  }
  const void* before = buckets[1].sync[2].numbers.raw();
  make_algorithm(plan, site);
  CHECK(buckets[1].sync.size() == 3);
  CHECK(buckets[1].sync[2].numbers.raw() == before);
}

TEST_CASE(
    "comm/algorithm: a text is a type, the resolved object has every default, and errors name what "
    "would be right") {
  register_once();
  nlohmann::json resolved;
  CHECK(algorithm_of("slow_average", &resolved).steps.keys.front().steps == 8);
  CHECK(resolved == nlohmann::json{{"type", "slow_average"}, {"period", 8}, {"momentum", 0.5}});
  CHECK(algorithm_of(nlohmann::json(), &resolved).name == "gossip");
  CHECK(resolved["type"] == "gossip");
  CHECK(resolved["order"] == "awc");
  CHECK(algorithm_of(resolved).name == "gossip");
  const auto contains = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  contains(error_of({{"type", "gossip"}, {"period", 4}}),
           "sync.algorithm.period: is not a key of gossip, but of diloco, gossip_diloco, "
           "local_sgd, slow_average, "
           "slowmo");
  contains(error_of({{"type", "slow_average"}, {"perod", 4}}), "did you mean 'period'");
  contains(error_of({{"type", "slow_average"}, {"period", 0}}),
           "sync.algorithm.period: expected an integer 1 … 1000000, found 0");
  contains(error_of("slow_averag"), "did you mean 'slow_average'");
  contains(error_of(3), "sync.algorithm: expected an object");
}
