// data.cache: the same bytes as without, each sample decoded once, no more memory than allowed, any
// number of threads and ranks.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/data/cached.h"
#include "apps/data/loader.h"
#include "tests/apps/data_test_support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/fakes/transport/thread_sharing.h"

using namespace starling;
using namespace starling::test;
using Split = Dataset::Split;

namespace {

/// What ranks that are threads decode between them.
struct DecodeCount {
  std::vector<std::atomic<int>> train = std::vector<std::atomic<int>>(500),
                                test = std::vector<std::atomic<int>>(500);
};

/// Counts what is decoded. An image takes 90 bytes, with its label 94.
class CountedDataset final : public NumberedDataset {
 public:
  CountedDataset(std::int64_t train, std::int64_t test, std::shared_ptr<DecodeCount> count)
      : NumberedDataset(train, test), count_(std::move(count)) {}
  double complexity(Split, std::int64_t index) const override { return static_cast<double>(index); }
  void image(Split split, std::int64_t index, std::uint8_t* out) const override {
    if (index == broken) fail(ExitCode::kUsage, "data", "sample {} is broken", index);
    ++(split == Split::kTrain ? count_->train : count_->test)[static_cast<std::size_t>(index)];
    NumberedDataset::image(split, index, out);
  }
  std::atomic<std::int64_t> broken{-1};

 private:
  std::shared_ptr<DecodeCount> count_;
};
constexpr double kSampleBytes = 94;

struct Sample {
  std::vector<std::byte> image = std::vector<std::byte>(90), label = std::vector<std::byte>(4);
  friend bool operator==(const Sample&, const Sample&) = default;
};
Sample sample_of(const Dataset& dataset, Split split, std::int64_t index) {
  Sample sample;
  std::byte* places[] = {sample.image.data(), sample.label.data()};
  dataset.read(split, index, places);
  return sample;
}

/// The data set of one rank, with its cache.
std::unique_ptr<CachedDataset> cached(std::int64_t train, std::int64_t test, double limit,
                                      const std::shared_ptr<DecodeCount>& count, World& world,
                                      const std::string& host = "host", bool refuse = false) {
  auto dataset =
      std::make_unique<CachedDataset>(std::make_unique<CountedDataset>(train, test, count), limit);
  dataset->open();
  dataset->allocate(world, *make_thread_sharing(host, refuse));
  return dataset;
}

int most(const std::vector<std::atomic<int>>& counts) {
  int result = 0;
  for (const auto& count : counts) result = std::max(result, count.load());
  return result;
}
int sum(const std::vector<std::atomic<int>>& counts) {
  int result = 0;
  for (const auto& count : counts) result += count;
  return result;
}

}  // namespace

TEST_CASE("apps/cache: reads the other data set's bytes, and each sample once") {
  FakeWorld(1).run([](Transport& transport) {
    const auto count = std::make_shared<DecodeCount>();
    const auto dataset = cached(40, 11, 1e6, count, transport.world());
    const NumberedDataset plain(40, 11);
    for (int round = 0; round < 3; ++round) {
      for (std::int64_t i = 0; i < 40; ++i)
        CHECK(sample_of(*dataset, Split::kTrain, i) == sample_of(plain, Split::kTrain, i));
      for (std::int64_t i = 0; i < 11; ++i)
        CHECK(sample_of(*dataset, Split::kTest, i) == sample_of(plain, Split::kTest, i));
    }
    CHECK(most(count->train) == 1);
    CHECK(most(count->test) == 1);
    const CachedDataset::Counts counts = dataset->counts();
    CHECK(counts.hits == 102);
    CHECK(counts.decoded == 51);
    CHECK(counts.kept == 51);
    CHECK(counts.bytes == 51 * 94);
    CHECK(dataset->label(Split::kTrain, 7) == plain.label(Split::kTrain, 7));
    CHECK(dataset->complexity(Split::kTrain, 7) == 7.0);
    CHECK(dataset->info().train_samples == 40);
  });
}

TEST_CASE("apps/cache: before it has memory it is the other data set") {
  const auto count = std::make_shared<DecodeCount>();
  const CachedDataset dataset(std::make_unique<CountedDataset>(4, 1, count), 1e6);
  const NumberedDataset plain(4, 1);
  for (int round = 0; round < 2; ++round)
    CHECK(sample_of(dataset, Split::kTrain, 3) == sample_of(plain, Split::kTrain, 3));
  CHECK(count->train[3] == 2);
  CHECK(dataset.counts().kept == 0);
}

TEST_CASE("apps/cache: keeps no more than the limit, and decodes the rest again") {
  FakeWorld(1).run([](Transport& transport) {
    const auto count = std::make_shared<DecodeCount>();
    const auto dataset = cached(40, 0, 10.5 * kSampleBytes, count, transport.world());
    const NumberedDataset plain(40, 0);
    for (int round = 0; round < 3; ++round) {
      for (std::int64_t i = 0; i < 40; ++i)
        CHECK(sample_of(*dataset, Split::kTrain, i) == sample_of(plain, Split::kTrain, i));
    }
    CHECK(dataset->counts().kept == 10);
    CHECK(dataset->counts().hits == 20);
    CHECK(sum(count->train) == 10 + 3 * 30);
    CHECK(contains(dataset->text(), "room for 10 of 40 samples"));
  });
}

TEST_CASE("apps/cache: the plan counts places and the table, per rank") {
  DatasetInfo info = NumberedDataset(40, 11).info();
  const CachePlan all = plan_cache(info, 1e6, 1);
  CHECK(all.sample_bytes == 94);
  CHECK(all.samples == 51);
  CHECK(all.places == 51);
  CHECK(all.bytes() == 256 + 51 * 94);  // 4 bytes a sample, on whole cache lines
  CHECK(plan_cache(info, 1e6, 4).places == 10 + 3);
  CHECK(plan_cache(info, 20 * kSampleBytes, 4).places == 5);
  CHECK(plan_cache(info, 3 * kSampleBytes, 4).places == 0);
  info.train_samples = 1'300'000;
  CHECK(plan_cache(info, 4e9, 8).places == 162'500 + 2);
  CHECK(plan_cache(info, 40e6, 8).places == 53'191);
}

TEST_CASE("apps/cache: ranks of a host share what any of them has decoded") {
  const std::int64_t samples = 120;
  for (const int ranks : {2, 3}) {
    const auto count = std::make_shared<DecodeCount>();
    std::atomic<std::int64_t> kept{0};
    FakeWorld(ranks).run([&](Transport& transport) {
      const auto dataset = cached(samples, 0, 1e6, count, transport.world());
      const NumberedDataset plain(samples, 0);
      const auto pass = [&](std::int64_t shift) {
        for (std::int64_t i = (transport.rank() + shift) % ranks; i < samples; i += ranks) {
          CHECK(sample_of(*dataset, Split::kTrain, i) == sample_of(plain, Split::kTrain, i));
        }
        transport.world().barrier();
      };
      pass(0);
      for (std::int64_t shift = 1; shift < 4; ++shift) pass(shift);
      kept += dataset->counts().kept;
      CHECK(dataset->counts().decoded == samples / ranks);
      CHECK(dataset->counts().hits == 3 * samples / ranks);
      CHECK(contains(dataset->text(), fmt::format("shared by the {} ranks of a host", ranks)));
    });
    CHECK(most(count->train) == 1);
    CHECK(kept == samples);
  }
}

TEST_CASE("apps/cache: ranks that cannot share, and those of different hosts, keep their own") {
  for (const bool refuse : {false, true}) {
    const auto count = std::make_shared<DecodeCount>();
    FakeWorld(2).run([&](Transport& transport) {
      const std::string host = refuse ? "one" : std::to_string(transport.rank());
      const auto dataset =
          cached(30, 0, 1e6, count, transport.world(), host, refuse && transport.rank() == 1);
      const NumberedDataset plain(30, 0);
      for (int round = 0; round < 2; ++round) {
        for (std::int64_t i = 0; i < 30; ++i)
          CHECK(sample_of(*dataset, Split::kTrain, i) == sample_of(plain, Split::kTrain, i));
      }
      CHECK(dataset->counts().kept == 30);
      CHECK(contains(dataset->text(), "of each rank"));
    });
    CHECK(sum(count->train) == 60);
  }
}

TEST_CASE("apps/cache: a sample that is being written is not seen") {
  FakeWorld(1).run([](Transport& transport) {
    const Shape large{64, 64, 3};
    const NumberedDataset plain(30, 0, large);
    const auto image_of = [&](const Dataset& dataset, std::int64_t index,
                              std::vector<std::byte>& image) {
      std::int32_t label = 0;
      std::byte* places[] = {image.data(), reinterpret_cast<std::byte*>(&label)};
      dataset.read(Split::kTrain, index, places);
    };
    std::vector<std::vector<std::byte>> expected;
    for (std::int64_t i = 0; i < 30; ++i) {
      image_of(plain, i, expected.emplace_back(static_cast<std::size_t>(large.elements())));
    }
    std::atomic<int> wrong{0};
    for (int round = 0; round < 20; ++round) {
      CachedDataset dataset(std::make_unique<NumberedDataset>(30, 0, large), 1e6);
      dataset.allocate(transport.world(), *make_thread_sharing("host", false));
      std::vector<std::thread> threads;
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          std::vector<std::byte> image(static_cast<std::size_t>(large.elements()));
          // the second half of the threads is a sample behind the first
          for (std::int64_t i = 0; i < 60; ++i) {
            const std::int64_t index = (i + 30 - t / 2) % 30;
            image_of(dataset, index, image);
            wrong += image != expected[static_cast<std::size_t>(index)];
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("apps/cache: what cannot be decoded is an error each time, and leaves nothing behind") {
  FakeWorld(1).run([](Transport& transport) {
    auto inner = std::make_unique<CountedDataset>(8, 0, std::make_shared<DecodeCount>());
    CountedDataset& source = *inner;
    CachedDataset dataset(std::move(inner), 1e6);
    dataset.allocate(transport.world(), *make_thread_sharing("host", false));
    source.broken = 5;
    for (int i = 0; i < 2; ++i) {
      CHECK(fails(ExitCode::kUsage, "sample 5 is broken",
                  [&] { sample_of(dataset, Split::kTrain, 5); }));
    }
    CHECK(dataset.counts().kept == 0);
    source.broken = -1;
    CHECK(sample_of(dataset, Split::kTrain, 5) ==
          sample_of(NumberedDataset(8, 0), Split::kTrain, 5));
    CHECK(dataset.counts().kept == 1);
  });
}
