// data.sampler: the order of `load_balanced` against its bounds, which ranks get what, complexities
// that ranks agree on.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "apps/data/complexity.h"
#include "apps/data/sampler.h"
#include "core/random.h"
#include "tests/apps/data_test_support.h"
#include "tests/fakes/transport/fake_transport.h"

using namespace starling;
using namespace starling::test;
using Split = Dataset::Split;

namespace {

std::shared_ptr<Sampler> sampler_of_config(const nlohmann::json& json) {
  register_builtin_samplers();
  ConfigSection section(json, "test.json");
  std::shared_ptr<Sampler> sampler =
      samplers().make(section.required_text("type", ""), "data.sampler.type", section);
  section.finish();
  return sampler;
}

/// Costs with a long tail, as file sizes have it; every tenth is the same as its neighbour's.
std::vector<float> uneven_costs(std::int64_t samples, std::uint64_t seed = 5) {
  std::vector<float> costs;
  for (std::int64_t i = 0; i < samples; ++i) {
    const Philox4x32 bits =
        random_bits(seed, RandomStream::kSynthetic, 9, static_cast<std::uint64_t>(i));
    costs.push_back(static_cast<float>(0.1 / (0.001 + uniform_double(bits.v[0], bits.v[1]))));
    if (i % 10 == 9) costs.back() = costs[costs.size() - 2];
  }
  return costs;
}

double range_of(const std::vector<float>& costs) {
  const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
  return static_cast<double>(*most) - static_cast<double>(*least);
}

std::shared_ptr<Sampler> balanced(const std::vector<float>& costs, double random_level = 0.0) {
  std::shared_ptr<Sampler> sampler =
      sampler_of_config({{"type", "load_balanced"}, {"random_level", random_level}});
  sampler->set_complexities(costs);
  return sampler;
}

/// What every rank takes in an epoch, batch by batch, without what fills no batch.
using Batches = std::vector<std::vector<std::int64_t>>;
std::vector<Batches> batches_of(const Sampler& sampler, EpochInputs inputs, int ranks) {
  std::vector<Batches> all;
  inputs.ranks = ranks;
  const auto count = static_cast<std::size_t>(inputs.samples / ranks / inputs.batch_size),
             batch = static_cast<std::size_t>(inputs.batch_size);
  for (inputs.rank = 0; inputs.rank < ranks; ++inputs.rank) {
    const std::vector<std::int64_t> own = sampler.epoch(inputs);
    REQUIRE(own.size() >= count * batch);
    Batches& batches = all.emplace_back();
    for (std::size_t b = 0; b < count; ++b) {
      batches.emplace_back(own.begin() + static_cast<std::ptrdiff_t>(b * batch),
                           own.begin() + static_cast<std::ptrdiff_t>((b + 1) * batch));
    }
  }
  return all;
}

std::multiset<std::int64_t> all_of(const std::vector<Batches>& ranks) {
  std::multiset<std::int64_t> all;
  for (const Batches& batches : ranks) {
    for (const auto& batch : batches) all.insert(batch.begin(), batch.end());
  }
  return all;
}

double work_of(const std::vector<std::int64_t>& batch, const std::vector<float>& costs) {
  double sum = 0.0;
  for (const std::int64_t sample : batch)
    sum += static_cast<double>(costs[static_cast<std::size_t>(sample)]);
  return sum;
}

/// By batch, how much more the rank with the most work has than the one with the least.
std::vector<double> differences(const std::vector<Batches>& ranks,
                                const std::vector<float>& costs) {
  std::vector<double> result;
  for (std::size_t b = 0; b < ranks.front().size(); ++b) {
    double least = std::numeric_limits<double>::infinity(), most = 0.0;
    for (const Batches& batches : ranks) {
      const double work = work_of(batches[b], costs);
      least = std::min(least, work);
      most = std::max(most, work);
    }
    result.push_back(most - least);
  }
  return result;
}

/// The largest difference of costs within a chunk of a batch: its k-th sample on every rank.
double widest_chunk(const std::vector<Batches>& ranks, std::size_t b,
                    const std::vector<float>& costs) {
  double widest = 0.0;
  for (std::size_t k = 0; k < ranks.front()[b].size(); ++k) {
    float least = std::numeric_limits<float>::infinity(), most = 0.0f;
    for (const Batches& batches : ranks) {
      const float cost = costs[static_cast<std::size_t>(batches[b][k])];
      least = std::min(least, cost);
      most = std::max(most, cost);
    }
    widest = std::max(widest, static_cast<double>(most) - static_cast<double>(least));
  }
  return widest;
}

}  // namespace

TEST_CASE("apps/sampler: balanced uses in each epoch the samples that shuffle uses, each once") {
  const auto plain = sampler_of_config({{"type", "shuffle"}});
  for (const std::int64_t samples : {103, 64, 240}) {
    const auto even = balanced(uneven_costs(samples), 0.3);
    for (const int ranks : {1, 2, 3, 5}) {
      for (const std::int64_t epoch : {0, 1, 7}) {
        const EpochInputs inputs{.seed = 42, .epoch = epoch, .samples = samples, .batch_size = 4};
        const auto expected = all_of(batches_of(*plain, inputs, ranks)),
                   found = all_of(batches_of(*even, inputs, ranks));
        CHECK(found == expected);
        CHECK(std::set(found.begin(), found.end()).size() == found.size());
      }
    }
  }
}

TEST_CASE(
    "apps/sampler: in every batch balanced keeps ranks within the widest chunk, and within the "
    "widest cost in an epoch") {
  const std::vector<float> costs = uneven_costs(960);
  const double range = range_of(costs);
  const auto plain = sampler_of_config({{"type", "shuffle"}}), even = balanced(costs);
  for (const int ranks : {2, 3, 4, 8}) {
    for (const std::int64_t batch_size : {1, 5, 20}) {
      for (const std::int64_t epoch : {0, 3}) {
        CAPTURE(ranks);
        CAPTURE(batch_size);
        const EpochInputs inputs{
            .seed = 3, .epoch = epoch, .samples = 960, .batch_size = batch_size};
        const auto found = batches_of(*even, inputs, ranks);
        const std::vector<double> difference = differences(found, costs),
                                  plainly = differences(batches_of(*plain, inputs, ranks), costs);
        double sum = 0.0;
        for (std::size_t b = 0; b < difference.size(); ++b) {
          CHECK(difference[b] <= widest_chunk(found, b, costs) + 1e-9);
          sum += difference[b];
        }
        // The chunks' widths are pieces of the sorted costs that do not overlap.
        CHECK(sum <= range + 1e-9);
        const double plain_sum = std::accumulate(plainly.begin(), plainly.end(), 0.0);
        CHECK(plain_sum > 2.0 * range);  // what the plain order does not keep
      }
    }
  }
}

TEST_CASE(
    "apps/sampler: balanced with noise keeps ranks within the noise, and brings other samples "
    "together") {
  const std::vector<float> costs = uneven_costs(960);
  const double range = range_of(costs);
  const auto groups = [](const std::vector<Batches>& ranks) {
    std::set<std::set<std::int64_t>> chunks;
    for (std::size_t b = 0; b < ranks.front().size(); ++b) {
      for (std::size_t k = 0; k < ranks.front()[b].size(); ++k) {
        std::set<std::int64_t> chunk;
        for (const Batches& batches : ranks) chunk.insert(batches[b][k]);
        chunks.insert(chunk);
      }
    }
    return chunks;
  };
  const auto shared = [&](const Sampler& sampler) {
    const auto of = [&](std::int64_t epoch) {
      return groups(
          batches_of(sampler, {.seed = 3, .epoch = epoch, .samples = 960, .batch_size = 6}, 4));
    };
    const auto first = of(0), second = of(1);
    return std::count_if(first.begin(), first.end(),
                         [&](const auto& chunk) { return second.count(chunk) != 0; });
  };
  double before = 0.0;
  for (const double level : {0.0, 0.05, 0.5}) {
    const auto even = balanced(costs, level);
    const auto found =
        batches_of(*even, {.seed = 3, .epoch = 2, .samples = 960, .batch_size = 6}, 4);
    const std::vector<double> difference = differences(found, costs);
    for (std::size_t b = 0; b < difference.size(); ++b)
      CHECK(difference[b] <= (1.0 + level) * range + 1e-9);
    const double sum = std::accumulate(difference.begin(), difference.end(), 0.0);
    CHECK(sum > before);
    before = sum;
  }
  CHECK(shared(*balanced(costs)) > 50);       // alike costs meet again
  CHECK(shared(*balanced(costs, 0.05)) < 5);  // but not with noise
}

TEST_CASE("apps/sampler: no rank always has the costliest of its chunk") {
  const std::vector<float> costs = uneven_costs(1200);
  const auto ranks = batches_of(*balanced(costs), {.seed = 1, .samples = 1200, .batch_size = 1}, 4);
  std::vector<int> costliest(4);
  for (std::size_t b = 0; b < ranks.front().size(); ++b) {
    std::size_t most = 0;
    for (std::size_t r = 1; r < 4; ++r) {
      if (work_of(ranks[r][b], costs) > work_of(ranks[most][b], costs)) most = r;
    }
    ++costliest[most];
  }
  for (const int count : costliest) CHECK(count > 50);
}

TEST_CASE("apps/sampler: the order follows from seed, epoch and complexities alone") {
  const std::vector<float> costs = uneven_costs(103);
  const EpochInputs inputs{
      .seed = 7, .epoch = 4, .samples = 103, .batch_size = 3, .rank = 1, .ranks = 4};
  const auto sampler = balanced(costs, 0.1);
  const auto expected = sampler->epoch(inputs);
  CHECK(sampler->epoch(inputs) == expected);
  CHECK(balanced(costs, 0.1)->epoch(inputs) == expected);
  // Any number of threads may ask for any epoch meanwhile.
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      EpochInputs other = inputs;
      for (int i = 0; i < 10; ++i) {
        other.epoch = t * 10 + i;
        sampler->epoch(other);
        wrong += sampler->epoch(inputs) != expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  const auto differs = [&](const auto& change) {
    EpochInputs other = inputs;
    change(other);
    return sampler->epoch(other) != expected;
  };
  CHECK(differs([](EpochInputs& other) { other.epoch = 5; }));
  CHECK(differs([](EpochInputs& other) { other.seed = 8; }));
  CHECK(differs([](EpochInputs& other) { other.rank = 2; }));
  CHECK(balanced(uneven_costs(103, 6), 0.1)->epoch(inputs) != expected);
  // The order of chunks by itself: each is a sample of its own, and no two cost the same.
  std::vector<float> distinct(24);
  std::iota(distinct.begin(), distinct.end(), 1.0f);
  const auto plain = balanced(distinct);
  const auto order = plain->epoch({.seed = 7, .epoch = 1, .samples = 24, .batch_size = 4});
  CHECK(plain->epoch({.seed = 7, .epoch = 2, .samples = 24, .batch_size = 4}) != order);
  CHECK(plain->epoch({.seed = 8, .epoch = 1, .samples = 24, .batch_size = 4}) != order);
}

TEST_CASE(
    "apps/sampler: without shuffle balanced goes from the cheapest to the costliest, the same in "
    "each epoch") {
  const std::vector<float> costs = uneven_costs(60);
  const auto ranks = batches_of(*balanced(costs),
                                {.epoch = 3, .shuffle = false, .samples = 60, .batch_size = 5}, 2);
  CHECK(ranks == batches_of(*balanced(costs),
                            {.epoch = 0, .shuffle = false, .samples = 60, .batch_size = 5}, 2));
  for (std::size_t b = 1; b < ranks.front().size(); ++b)
    CHECK(work_of(ranks[0][b], costs) >= work_of(ranks[0][b - 1], costs));
}

TEST_CASE("apps/sampler: samples that cost the same are dealt anew in each epoch") {
  const auto sampler = balanced(std::vector<float>(96, 2.0f));
  const EpochInputs first{.seed = 1, .epoch = 0, .samples = 96, .batch_size = 4},
      second{.seed = 1, .epoch = 1, .samples = 96, .batch_size = 4};
  CHECK(batches_of(*sampler, first, 3) != batches_of(*sampler, second, 3));
  CHECK(all_of(batches_of(*sampler, first, 3)).size() == 96);
}

namespace {

/// Samples that say what they cost, and take as long.
class CostlyDataset : public NumberedDataset {
 public:
  CostlyDataset(std::int64_t samples, double milliseconds)
      : NumberedDataset(samples, 1), milliseconds_(milliseconds) {}
  double complexity(Split, std::int64_t index) const override {
    return index == bad ? bad_cost : static_cast<double>(index % 4 + 1);
  }
  void image(Split split, std::int64_t index, std::uint8_t* out) const override {
    if (index == broken) fail(ExitCode::kUsage, "data", "sample {} is broken", index);
    ++reads[static_cast<std::size_t>(index)];
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(
        milliseconds_ * static_cast<double>(index % 4 + 1)));
    NumberedDataset::image(split, index, out);
  }
  std::int64_t bad = -1, broken = -1;
  double bad_cost = 0.0;
  mutable std::vector<std::atomic<int>> reads = std::vector<std::atomic<int>>(1000);

 private:
  double milliseconds_;
};

}  // namespace

TEST_CASE(
    "apps/sampler: ranks agree on declared complexities, and name a sample whose complexity is "
    "none") {
  for (const int ranks : {1, 3}) {
    FakeWorld(ranks).run([&](Transport& transport) {
      CostlyDataset dataset(20, 0.0);
      const auto costs =
          agree_on_complexities(dataset, Sampler::Complexity::kDeclared, transport.world());
      REQUIRE(costs.size() == 20);
      for (std::size_t i = 0; i < 20; ++i) CHECK(costs[i] == static_cast<float>(i % 4 + 1));
      dataset.bad = 13;
      for (const double bad :
           {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1e300}) {
        dataset.bad_cost = bad;
        CHECK(fails(ExitCode::kUsage, "training sample 13 has complexity", [&] {
          agree_on_complexities(dataset, Sampler::Complexity::kDeclared, transport.world());
        }));
      }
      if (ranks == 1) return;
      dataset.bad_cost = transport.rank() == 2 ? 8.0 : 7.0;
      CHECK(fails(
          ExitCode::kUsage, "ranks 0 and 2 find another complexity for training sample 13", [&] {
            agree_on_complexities(dataset, Sampler::Complexity::kDeclared, transport.world());
          }));
    });
  }
  const NumberedDataset silent(4, 1);
  CHECK(fails(ExitCode::kUsage, "data.sampler.complexity",
              [&] { silent.complexity(Split::kTrain, 0); }));
}

TEST_CASE("apps/sampler: complexities are measured once a sample, and all ranks get the same") {
  for (const int ranks : {1, 3}) {
    FakeWorld world(ranks);
    CostlyDataset dataset(40, 2.0);
    std::mutex mutex;
    std::vector<std::vector<float>> all;
    world.run([&](Transport& transport) {
      const auto costs =
          agree_on_complexities(dataset, Sampler::Complexity::kMeasured, transport.world());
      const std::lock_guard lock(mutex);
      all.push_back(costs);
    });
    for (std::size_t i = 0; i < 40; ++i) CHECK(dataset.reads[i] == 1);
    for (const auto& costs : all) CHECK(costs == all.front());
    for (std::size_t i = 0; i < 40; ++i)
      // milliseconds; sleeps end late only
      CHECK(all.front()[i] >= 2.0f * static_cast<float>(i % 4 + 1));
    dataset.broken = 17;
    world.run([&](Transport& transport) {
      CHECK(fails(ExitCode::kUsage, "sample 17 is broken", [&] {
        agree_on_complexities(dataset, Sampler::Complexity::kMeasured, transport.world());
      }));
    });
  }
}
