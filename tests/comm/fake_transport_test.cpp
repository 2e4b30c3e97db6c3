#include "tests/fakes/transport/fake_transport.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>

#include "comm/averaging.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "staged_jobs.h"
#include "support.h"
#include "tests/support/errors.h"

using namespace starling;

namespace {

Tensor filled(Backend& backend, std::int64_t count, DType dtype, const std::function<double(std::int64_t)>& value) {
  Tensor tensor(backend, Shape{count}, dtype);
  test::set_numbers(tensor, value);
  return tensor;
}

}  // namespace

TEST_CASE("comm/fake: the control plane") {
  FakeWorld world(5, {10.0, 0.0, 0, 2});
  world.run([](Transport& t) {
    const int r = t.rank();
    CHECK(t.world().local_rank() == r % 2);
    CHECK(t.world().local_size() == (r == 4 ? 1 : 2));
    t.world().barrier();
    std::vector<int> data(3, r);
    t.world().broadcast(data.data(), sizeof(int) * 3, 3);
    CHECK(data == std::vector<int>{3, 3, 3});
    const auto all = t.world().all_gather(std::string(static_cast<std::size_t>(r), 'x'));
    for (int j = 0; j < 5; ++j) CHECK(all[static_cast<std::size_t>(j)].size() == static_cast<std::size_t>(j));
    double values[2] = {0.1 * r, -1.0 * r};
    t.world().sum(values, 2);
    CHECK(values[0] == ((((0.0 + 0.1 * 1) + 0.1 * 2) + 0.1 * 3) + 0.1 * 4));
    double most[2] = {1.0 * r, -1.0 * r};
    t.world().max(most, 2);
    CHECK(most[0] == 4.0);
    CHECK(most[1] == 0.0);
  });
}

TEST_CASE("comm/fake: sums are made in rank order, in place or not") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  std::vector<Tensor> in, out;
  for (int r = 0; r < 3; ++r) {
    in.push_back(
        filled(*backend, 1000, DType::kFloat32, [&](std::int64_t i) { return std::pow(10.0, r) * (1.0 + 1e-3 * static_cast<double>(i)); }));
    out.emplace_back(*backend, Shape{1000}, DType::kFloat32);
  }
  std::vector<float> expected;
  for (int i = 0; i < 1000; ++i) expected.push_back((in[0].data<float>()[i] + in[1].data<float>()[i]) + in[2].data<float>()[i]);
  FakeWorld world(3);
  world.run([&](Transport& t) {
    const auto r = static_cast<std::size_t>(t.rank());
    t.wait(t.start_sum(in[r], out[r], {}));
    t.wait(t.start_sum(in[r], in[r], {}));
  });
  for (std::size_t r = 0; r < 3; ++r) {
    for (int i = 0; i < 1000; ++i) {
      REQUIRE(out[r].data<float>()[i] == expected[static_cast<std::size_t>(i)]);
      REQUIRE(in[r].data<float>()[i] == expected[static_cast<std::size_t>(i)]);
    }
  }
}

TEST_CASE("comm/fake: a wait for a stopped rank ends at its limit and says what and whom it waited for") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  FakeWorld world(3, {2.0, 0.0, 0, 0});  // the barrier's limit too: no pause of a busy machine's is to reach it
  std::vector<std::string> texts(3);
  std::atomic<int> ended{0};
  std::vector<Tensor> in, out;
  for (int r = 0; r < 3; ++r) {
    in.push_back(filled(*backend, 8, DType::kFloat32, [](std::int64_t) { return 1.0; }));
    out.emplace_back(*backend, Shape{8}, DType::kFloat32);
  }
  const auto body = [&](Transport& t) {
    const auto r = static_cast<std::size_t>(t.rank());
    t.world().barrier();
    if (r == 2) {
      world.stop(2);
      return;
    }
    Exchange exchange;
    exchange.kind = Exchange::Kind::kGroupSum;
    exchange.group = {0, 1, 2};
    const auto begin = std::chrono::steady_clock::now();
    texts[r] = test::error_of(ExitCode::kLost, [&] { t.wait(t.start_exchange(exchange, in[r], {out[r]}, {12, 3, 11})); });
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
    ++ended;
    test::soon([&] { return ended == 2; });
    fail(ExitCode::kInternal, "test", "over");  // so that the transports' ends do not wait their time once more
  };
  CHECK(test::error_text([&] { world.run(body); }) == "[test] over");
  for (std::size_t r = 0; r < 2; ++r) {
    CAPTURE(texts[r]);
    for (const char* part : {"step 12", "bucket 3", "round 11", "group of ranks 0, 1, 2", "waited 2 s", "missing: rank 2 last heard of"}) {
      CHECK(texts[r].find(part) != std::string::npos);
    }
    CHECK(texts[r].find("rank " + std::to_string(r) + " waited") != std::string::npos);
    CHECK(texts[r].find('\n') == std::string::npos);
  }
}

TEST_CASE("comm/fake: a rank that throws ends the waits of the others, and its error is the one reported") {
  FakeWorld world(4, {30.0, 0.0, 0, 0});
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = test::error_text([&] {
    world.run([](Transport& t) {
      if (t.rank() == 1) fail(ExitCode::kUsage, "data", "no file");
      t.world().barrier();
    });
  });
  CHECK(text == "[data] no file");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("comm/averaging: the mean model and the consensus distance") {
  const int n = 3;
  std::vector<std::unique_ptr<Backend>> backends;
  for (int r = 0; r < n; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
  FakeWorld world(n);
  world.run([&](Transport& t) {
    Backend& backend = *backends[static_cast<std::size_t>(t.rank())];
    test::TinyModel model({Shape{40}, Shape{1 << 20, 2}});
    const BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, 1);
    const std::vector<Bucket> buckets = make_buckets(plan, backend, DType::kFloat32, 0, false);
    // x_i = base + i: the mean is base + 1, the squared distances are 1, 0, 1 per element. The padding is junk.
    for (const Bucket& bucket : buckets) test::set_numbers(bucket.parameters, [&](std::int64_t) { return 1000.0 * (t.rank() + 1); });
    for (const auto& p : model.parameters)
      test::set_numbers(p->value, [&](std::int64_t i) { return static_cast<double>(i % 7) + t.rank(); });
    const std::vector<double> before = test::numbers(buckets[1].parameters);
    std::vector<Tensor> in;
    for (const Bucket& bucket : buckets) in.push_back(bucket.parameters);
    const std::vector<Tensor> mean = mean_model(t, in);
    CHECK(test::numbers(buckets[1].parameters) == before);
    for (std::int64_t i = 0; i < (2 << 20); i += 1001)
      REQUIRE(mean[0].data<float>()[i] == doctest::Approx(static_cast<double>(i % 7) + 1.0));
    const ConsensusDistance distance = consensus_distance(t, backend, buckets, mean);
    REQUIRE(distance.per_bucket.size() == 2);
    CHECK(distance.per_bucket[1] == doctest::Approx(std::sqrt(40.0 * 2 / 3)).epsilon(1e-5));
    CHECK(distance.per_bucket[0] == doctest::Approx(std::sqrt((2 << 20) * 2.0 / 3)).epsilon(1e-5));
    CHECK(distance.total == doctest::Approx(std::sqrt((40.0 + (2 << 20)) * 2 / 3)).epsilon(1e-5));
  });
}

TEST_CASE("comm/single: a world of one copies and never waits") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto transport = make_single_transport();
  const Tensor in = filled(*backend, 5, DType::kFloat64, [](std::int64_t i) { return static_cast<double>(i); });
  const Tensor out(*backend, Shape{5}, DType::kFloat64);
  transport->wait(transport->start_sum(in, out, {}));
  CHECK(test::numbers(out) == test::numbers(in));
  CHECK(transport->world().all_gather("a") == std::vector<std::string>{"a"});
  CHECK(test::numbers(mean_model(*transport, {in})[0]) == test::numbers(in));
}
