// Ranks that share one copy of a model: its parts, its memory, and how ranks wait for each other.
// That every algorithm has the same numbers between replicas is in families_test.
#include "comm/replica.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "core/error.h"
#include "kernels/open_backend.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/fakes/transport/thread_sharing.h"
#include "tests/support/errors.h"

namespace starling::test {

TEST_CASE(
    "comm/replica: parts cover a bucket, are never empty, and begin at blocks or parameters") {
  const TinyModel model(job_shapes());
  for (const double bytes : {1.0, 600.0, 1e9}) {
    for (const int ranks : {2, 3, 5}) {
      for (const std::int64_t block : {32, 256, 4096}) {
        for (const bool whole : {false, true}) {
          BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, bytes);
          const BucketPlan before = plan;
          split_buckets(plan, ranks, block, whole);
          for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
            const BucketLayout& bucket = plan.buckets[b];
            REQUIRE(bucket.parts.size() == static_cast<std::size_t>(ranks) + 1);
            CHECK(bucket.parts.front() == 0);
            CHECK(bucket.parts.back() == bucket.elements);
            CHECK(bucket.elements >= before.buckets[b].elements);
            for (std::size_t part = 0; part + 1 < bucket.parts.size(); ++part) {
              const std::int64_t first = bucket.parts[part];
              CHECK(bucket.parts[part + 1] > first);
              bool begins = first >= before.buckets[b].elements;  // padding
              for (const BucketSlot& slot : bucket.slots) begins |= slot.offset == first;
              CHECK((whole ? begins && first % 32 == 0 : first % block == 0));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("comm/replica: gradients take the memory of those that were given back") {
  FakeWorld world(2);
  world.run([](Transport& transport) {
    const auto backend = open_backend(DeviceType::kCpu, 1);
    const TinyModel model(job_shapes());
    BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, 600);
    split_buckets(plan, 2, 32, false);
    std::vector<starling::Bucket> buckets = make_buckets(plan, *backend, DType::kFloat32, 0, false);
    const auto replica = make_shared_replica(transport, 2, make_thread_sharing("one", false), 20.0);
    for (starling::Bucket& bucket : buckets) bucket.own = {0, 32};
    replica->open(buckets);
    const auto take = [&](std::int64_t elements) {
      return replica->gradients(*backend, Shape{elements}, DType::kFloat32);
    };
    Tensor first = take(100), second = take(2000), third = take(100);
    const std::byte* const at = second.raw();
    CHECK(take(10).raw() > third.raw());
    second = {};
    CHECK(take(2000).raw() == at);
    first = second = third = {};  // the pieces become one
    CHECK(take(3000).raw() < at);
    replica->barrier();
  });
}

TEST_CASE("comm/replica: what ranks share is written by one and read by all; sums are in order") {
  FakeWorld world(6);
  world.run([](Transport& transport) {
    const auto backend = open_backend(DeviceType::kCpu, 1);
    const auto made = make_shared_replica(transport, 3, make_thread_sharing("one", false), 20.0);
    Replica& replica = *made;
    CHECK(replica.index() == transport.rank() / 3);
    CHECK(replica.between().rank() == replica.index());
    CHECK(replica.between().size() == 2);
    std::vector<starling::Bucket> none;
    replica.open(none);
    const Tensor shared = replica.allocate(*backend, Shape{3}, DType::kFloat64);
    CHECK(numbers(shared) == std::vector<double>{0, 0, 0});
    replica.barrier();
    shared.data<double>()[replica.place()] = transport.rank();
    replica.barrier();
    const double first = 3.0 * replica.index();
    CHECK(numbers(shared) == std::vector<double>{first, first + 1, first + 2});
    for (int i = 0; i < 4; ++i) {
      double value = 1e16 * (replica.place() == 0) + (replica.place() == 1) + i;
      replica.sum(&value, 1);
      CHECK(value == ((1e16 + i) + (1.0 + i)) + i);
    }
  });
}

TEST_CASE("comm/replica: ranks of two hosts are refused by name, a late one is told") {
  FakeWorld world(4);
  world.run([](Transport& transport) {
    const std::string host = transport.rank() < 3 ? "a 1" : "b 2";
    const std::string text = error_text(ExitCode::kUsage, [&] {
      make_shared_replica(transport, 2, make_thread_sharing(host, false), 20.0);
    });
    CHECK(contains(text, "ranks 2 and 3 of one replica are on different hosts (a and b)"));
    const auto backend = open_backend(DeviceType::kCpu, 1);
    const auto refused =
        make_shared_replica(transport, 2, make_thread_sharing("a", transport.rank() == 1), 20.0);
    const std::string why = error_text(
        ExitCode::kMemory, [&] { refused->allocate(*backend, Shape{8}, DType::kFloat32); });
    CHECK(contains(why, "8 fp32 numbers that the 2 ranks of a replica share: rank 1: memory for"));
    const auto late = make_shared_replica(transport, 2, make_thread_sharing("a", false), 0.3);
    std::vector<starling::Bucket> none;
    late->open(none);
    if (transport.rank() % 2 == 1) return;
    const std::string told = error_text(ExitCode::kLost, [&] { late->barrier({.step = 7}); });
    CHECK(contains(told, "the ranks of a replica after step 7"));
    CHECK(contains(told, fmt::format("missing: rank {}", transport.rank() + 1)));
  });
}

}  // namespace starling::test
