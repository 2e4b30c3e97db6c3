#include "comm/averaging.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/open_backend.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"

using namespace starling;

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
    // x_i = base + i: the mean is base + 1, the squared distances are 1, 0, 1 per element. The
    // padding is junk.
    for (const Bucket& bucket : buckets)
      test::set_numbers(bucket.parameters, [&](std::int64_t) { return 1000.0 * (t.rank() + 1); });
    for (const auto& p : model.parameters)
      test::set_numbers(p->value,
                        [&](std::int64_t i) { return static_cast<double>(i % 7) + t.rank(); });
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
  const Tensor in(*backend, Shape{5}, DType::kFloat64), out(*backend, Shape{5}, DType::kFloat64);
  test::set_numbers(in, [](std::int64_t i) { return static_cast<double>(i); });
  transport->wait(transport->start_sum(in, out, {}));
  CHECK(test::numbers(out) == test::numbers(in));
  CHECK(transport->world().all_gather("a") == std::vector<std::string>{"a"});
  CHECK(test::numbers(mean_model(*transport, {in})[0]) == test::numbers(in));
}
