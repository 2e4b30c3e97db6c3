#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support.h"
#include "tests/support/numbers_of_ranks.h"

// What an algorithm keeps of other ranks, bit by bit after every step (algorithms.md, section 9).
// All else that algorithms keep shows in the parameters (families_test.cpp).

using namespace starling;
using nlohmann::json;
using test::Job;
using test::run_fake;

namespace {

using Row = std::vector<double>;

/// One rank after one step: all buckets behind one another, with their padding.
struct Kept {
  Row x;
  std::map<std::string, Row> states;  ///< by their names in checkpoints
};
using Steps = std::vector<std::vector<Kept>>;  ///< [step][rank]

Steps watched(Job job, int ranks, const test::FakeRun& fake) {
  Steps steps(static_cast<std::size_t>(job.steps),
              std::vector<Kept>(static_cast<std::size_t>(ranks)));
  job.after_step = [&](int rank, int step, const std::vector<Bucket>& buckets) {
    Kept& kept = steps[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)];
    const auto append = [](Row& to, const Tensor& from) {
      const Row numbers = test::numbers(from);
      to.insert(to.end(), numbers.begin(), numbers.end());
    };
    for (const Bucket& bucket : buckets) {
      append(kept.x, bucket.parameters);
      for (const auto& state : bucket.sync) append(kept.states[state.name], state.numbers);
    }
  };
  run_fake(job, ranks, fake);
  return steps;
}

bool same_bits(const Row& a, const Row& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  });
}

const std::vector<test::FakeRun> kWays = {
    {}, {.direct = true, .ranks_per_host = 2}, {.most_delay_seconds = 0.0003, .seed = 5}};

}  // namespace

TEST_CASE(
    "comm/kept: low_precision's replicas of a rank have the rank's bits on every neighbour after "
    "every step") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const json& algorithm :
         {json{{"type", "low_precision"}},
          json{{"type", "low_precision"}, {"compressor", "int8"}, {"block", 32}},
          json{{"type", "low_precision"}, {"interval", 3}},
          json{{"type", "low_precision"}, {"compressor", "none"}}}) {
      std::size_t turn = 0;
      for (const int n : {2, 3, 4, 8}) {
        for (const char* topology : {"static-ring", "complete", "star"}) {
          if (++turn % 2 == 0) continue;  // every other one for each number of ranks
          Job job = test::exact_job(algorithm, {{"type", topology}},
                                    {{"type", "sgd"}, {"momentum", 0.8}, {"weight_decay", 0.05}});
          job.dtype = dtype;
          job.steps = 12;
          job.lr = 0.05;
          job.rank_curvature = 0.3;
          const Steps steps = watched(job, n, kWays[turn % kWays.size()]);
          CAPTURE(algorithm.dump());
          CAPTURE(topology);
          CAPTURE(n);
          const auto rounds = test::make_test_topology(job.topology, n);
          std::size_t replicas = 0;
          for (std::size_t t = 0; t < steps.size(); ++t) {
            CAPTURE(t);
            const bool exchanged = (t + 1) % algorithm.value("interval", std::size_t{1}) == 0;
            for (int i = 0; i < n; ++i) {
              const Kept& mine = steps[t][static_cast<std::size_t>(i)];
              if (exchanged) CHECK(same_bits(mine.states.at("replica.0"), mine.x));
              int k = 0;
              for (const auto& [j, weight] : Topology::row(rounds->round(0), i)) {
                if (j == i) continue;
                const Kept& other = steps[t][static_cast<std::size_t>(j)];
                const Row& replica = mine.states.at("replica." + std::to_string(++k));
                CHECK(same_bits(replica, other.states.at("replica.0")));
                if (exchanged) CHECK(same_bits(replica, other.x));
                ++replicas;
              }
            }
          }
          CHECK(replicas >= steps.size() * 2);
          CHECK_FALSE(same_bits(steps.back()[0].x, steps.back()[1].x));
        }
      }
    }
  }
}
