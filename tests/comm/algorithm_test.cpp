#include <doctest/doctest.h>

#include <cmath>

#include "core/config.h"
#include "core/trace.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/numbers_of_ranks.h"

using namespace starling;
using test::Job;
using test::largest_difference;
using test::run_fake;

namespace {

const nlohmann::json kAdamW = {{"type", "adamw"}, {"weight_decay", 0.1}};

}  // namespace

TEST_CASE("comm/algorithm: gossip and all-reduce follow the contract, compared with a plain rewriting of it") {
  for (const int n : {1, 2, 3, 4, 5, 8}) {
    for (const char* type : {"ring", "one-peer-exp", "base-2", "complete", "random-matching", "allreduce"}) {
      const std::string name = type;
      if ((name == "ring" && n % 2) || (name == "one-peer-exp" && (n & (n - 1)))) continue;
      for (const double clip : {0.0, 3.0}) {
        Job job;
        job.algorithm = name == "allreduce" ? "allreduce" : "gossip";
        job.topology = {{"type", type}};
        job.dtype = DType::kFloat64;
        job.clip.norm = clip;
        job.start_apart = true;
        job.steps = 8;
        CAPTURE(n);
        CAPTURE(name);
        CAPTURE(clip);
        CHECK(largest_difference(run_fake(job, n), run_plain(job, n)) < 1e-12);
      }
    }
  }
}

TEST_CASE("comm/algorithm: custom rows and weighted groups mix as their matrix says") {
  Job job;
  job.dtype = DType::kFloat64;
  job.start_apart = true;
  job.topology = nlohmann::json::parse(R"({"type": "custom", "rounds": [
    {"rows": [[[0, 0.5], [1, 0.25], [2, 0.25]], [[0, 0.25], [1, 0.75]], [[0, 0.25], [2, 0.5], [3, 0.25]], [[2, 0.25], [3, 0.75]]]},
    [{"ranks": [1, 2, 3], "weight": 0.5}], [{"ranks": [0, 3], "weight": 0.8}]]})");
  CHECK(largest_difference(run_fake(job, 4), run_plain(job, 4)) < 1e-12);
}

TEST_CASE("comm/algorithm: with lr 0 gossip keeps the mean and reaches consensus after the stated rounds") {
  struct Case {
    const char* type;
    int n, rounds;
  };
  for (const auto& [type, n, rounds] :
       {Case{"one-peer-exp", 8, 3}, Case{"complete", 5, 1}, Case{"one-peer-exp", 4, 2}, Case{"ring", 2, 1}}) {
    Job job;
    job.topology = {{"type", type}};
    job.dtype = DType::kFloat64;
    job.lr = 0.0;
    job.start_apart = true;
    job.steps = 1;
    const auto start = run_fake(job, n);
    job.steps = rounds + 1;  // step 0 mixes nothing
    const auto end = run_fake(job, n);
    job.steps = rounds;
    const auto before = run_fake(job, n);
    CAPTURE(type);
    for (std::size_t e = 0; e < start[0].size(); e += 13) {
      double mean = 0.0;
      for (const auto& rank : start) mean += rank[e] / n;
      for (const auto& rank : end) CHECK(rank[e] == doctest::Approx(mean).epsilon(1e-14));
    }
    CHECK(std::abs(before[0][0] - before.back()[0]) > 0.1);  // and not earlier
  }
}

TEST_CASE("comm/algorithm: update mode, bucket size, overlap, delays, evaluation and a resume change no bit") {
  for (const char* type : {"one-peer-exp", "complete", "random-matching", "allreduce"}) {
    Job job;
    job.topology = {{"type", type}};
    job.optimizer = kAdamW;
    const bool sums = std::string(type) == "allreduce";
    if (sums) job.algorithm = "allreduce";
    CAPTURE(type);
    const auto expected = run_fake(job, sums ? 5 : 4);
    CHECK(test::ways_that_change_bits(job, expected, true) == "");
    if (sums) {
      for (const auto& rank : expected) CHECK(rank == expected[0]);
    }
  }
}

TEST_CASE("comm/algorithm: a step whose gradients overflow mixes and does not update; all-reduce carries the overflow to all") {
  for (const char* algorithm : {"gossip", "allreduce"}) {
    for (const double clip : {0.0, 3.0}) {
      Job job;
      job.algorithm = algorithm;
      job.topology = {{"type", "one-peer-exp"}};
      job.dtype = DType::kFloat64;
      job.start_apart = true;
      job.in_backward = false;
      job.check_overflow = true;
      job.steps = 7;
      job.loss_scale = 1024;
      job.clip.norm = clip;
      job.overflows = {{0, 0}, {2, 3}, {2, 4}, {1, 6}};
      CAPTURE(algorithm);
      CAPTURE(clip);
      CHECK(largest_difference(run_fake(job, 4), run_plain(job, 4)) < 1e-12);
      Job without = job;
      without.overflows.clear();
      CHECK(largest_difference(run_fake(without, 4), run_plain(job, 4)) > 1e-3);
      CHECK(largest_difference(run_fake(without, 4), run_plain(without, 4)) < 1e-12);
    }
  }
}

TEST_CASE("comm/algorithm: a skipped step leaves an optimizer as if it had not been, and a power of two as loss scale changes no bit") {
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
      job.optimizer = kAdamW;
      const auto expected = run_fake(job, 2);
      job.compute = compute;
      CHECK(run_fake(job, 2) == expected);
    }
  }
}

TEST_CASE("comm/algorithm: a global clip norm gives the same bits for every bucket size; a bucket's own norm clips in either mode") {
  Job job;
  job.topology = {{"type", "one-peer-exp"}};
  job.clip = {2.0, false};
  const auto expected = run_fake(job, 4);
  for (const double bytes : {1.0, 300.0, 1e9}) {
    job.bucket_bytes = bytes;
    CHECK(run_fake(job, 4) == expected);
  }
  Job unclipped = job;
  unclipped.clip = {};
  CHECK(run_fake(unclipped, 4) != expected);
  job.clip.per_bucket = true;
  job.bucket_bytes = 600;
  const auto in_backward = run_fake(job, 4);
  job.in_backward = false;
  CHECK(run_fake(job, 4) == in_backward);
  CHECK(in_backward != expected);
  // One bucket: its norm is the global one, but for the order of an fp64 sum.
  job.bucket_bytes = 1e9;
  CHECK(largest_difference(run_fake(job, 4), expected) < 1e-6);
}

TEST_CASE("comm/algorithm: a step after a load without resume is refused") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto transport = make_single_transport();
  register_builtin_algorithms();
  register_builtin_optimizers();
  test::TinyModel model({Shape{4}});
  const BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, 1);
  std::vector<Bucket> buckets = make_buckets(plan, *backend, DType::kFloat32, 0, false);
  const nlohmann::json config = nlohmann::json::object();
  ConfigSection section(config, "test");
  const auto rule = optimizers().make("sgd", "type", section);
  const auto mixer = transport->make_mixer(*backend);
  const auto gossip = make_algorithm(algorithm_of("gossip"),
                                     {.backend = *backend, .transport = *transport, .mixer = *mixer, .rule = *rule, .buckets = buckets});
  gossip->begin({3, 4, 1.0, 0.1});
  CHECK(test::error_text([&] { gossip->bucket_ready(0); }).find("resume(3)") != std::string::npos);
  gossip->resume(3);
  gossip->bucket_ready(0);
  gossip->backward_done();
  CHECK(test::error_text([&] { algorithm_of("gosip"); }).find("did you mean 'gossip'") != std::string::npos);
}

TEST_CASE("comm/algorithm: exchanges and updates show on the timeline with their bucket") {
  Job job;
  job.steps = 2;
  job.bucket_bytes = 1e9;
  std::vector<std::unique_ptr<Backend>> backends;
  for (int r = 0; r < 2; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
  FakeWorld world(2);
  std::string events;
  world.run([&](Transport& transport) {
    Tracer tracer(transport.rank());
    Tracer::install(&tracer);
    test::run_job(job, transport, *backends[static_cast<std::size_t>(transport.rank())]);
    Tracer::install(nullptr);
    if (transport.rank() == 0) events = tracer.events({});
  });
  CHECK(events.find("update bucket 0") != events.npos);
  CHECK(events.find("exchange bucket 0") != events.npos);
}
