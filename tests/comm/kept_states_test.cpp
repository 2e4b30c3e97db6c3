#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support.h"
#include "tests/support/numbers_of_ranks.h"

// What algorithms keep beside the parameters, looked at after every step on all ranks at once
// (algorithms.md, section 9).

using namespace starling;
using nlohmann::json;
using test::Job;
using test::run_fake;

namespace {

using Row = std::vector<double>;

/// One rank after one step: all buckets behind one another, with their padding.
struct Kept {
  Row x, gradients, momentum;
  std::vector<std::pair<std::string, Row>> states;  ///< as checkpoints name them
  const Row& of(const std::string& name) const {
    for (const auto& [other, numbers] : states) {
      if (other == name) return numbers;
    }
    FAIL("no state ", name);
    return x;
  }
};
using Steps = std::vector<std::vector<Kept>>;  ///< [step][rank]

Kept kept_in(const std::vector<Bucket>& buckets) {
  Kept kept;
  const auto append = [](Row& to, const Tensor& from) {
    const Row numbers = test::numbers(from);
    to.insert(to.end(), numbers.begin(), numbers.end());
  };
  for (const Bucket& bucket : buckets) {
    append(kept.x, bucket.parameters);
    append(kept.gradients, bucket.gradients);
    if (!bucket.states.empty()) append(kept.momentum, bucket.states[0]);
    for (std::size_t k = 0; k < bucket.sync.size(); ++k) {
      if (kept.states.size() == k) kept.states.emplace_back(bucket.sync[k].name, Row());
      append(kept.states[k].second, bucket.sync[k].numbers);
    }
  }
  return kept;
}

Steps watched(Job job, int ranks, const test::FakeRun& fake = {}) {
  Steps steps(static_cast<std::size_t>(job.steps),
              std::vector<Kept>(static_cast<std::size_t>(ranks)));
  job.after_step = [&](int rank, int step, const std::vector<Bucket>& buckets) {
    steps[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)] = kept_in(buckets);
  };
  run_fake(job, ranks, fake);
  return steps;
}

/// The largest |Σ of the ranks' numbers| of what `of` takes from each.
template <class Of>
double largest_sum(const std::vector<Kept>& ranks, const Of& of) {
  Row total(ranks[0].x.size(), 0.0);
  for (const Kept& kept : ranks) {
    for (std::size_t e = 0; e < total.size(); ++e) total[e] += of(kept, e);
  }
  double largest = 0.0;
  for (const double value : total)
    largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 1e300);
  return largest;
}

double largest_in(const Row& row) {
  double largest = 0.0;
  for (const double value : row) largest = std::max(largest, std::abs(value));
  return largest;
}

bool same_bits(const Row& a, const Row& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  });
}

std::vector<json> doubly_stochastic(int n) {
  std::vector<json> all{
      {{"type", "base-2"}}, {{"type", "static-ring"}}, {{"type", "directed-exp"}}};
  if (n % 2 == 0) all.push_back({{"type", "ring"}});
  return all;
}

Job job_of(const json& algorithm, const json& topology, const json& optimizer) {
  Job job = test::exact_job(algorithm, topology, optimizer);
  job.steps = 12;
  job.lr = 0.05;
  job.rank_curvature = 0.3;
  return job;
}

const json kMomentum = {{"type", "sgd"}, {"momentum", 0.8}, {"weight_decay", 0.05}};
const std::vector<test::FakeRun> kWays = {
    {}, {.direct = true, .ranks_per_host = 2}, {.most_delay_seconds = 0.0003, .seed = 5}};

/// Runs a job as it is, with gradients clipped, and with an overflow, and calls check(steps, name)
/// for each.
template <class Check>
void in_every_manner(const Job& job, int ranks, const test::FakeRun& way, const Check& check) {
  check(watched(job, ranks, way), "as it is");
  Job other = job;
  other.clip.norm = 3.0;
  check(watched(other, ranks, way), "clipped");
  other = job;
  other.in_backward = false;
  other.check_overflow = true;
  other.loss_scale = 64;
  other.overflows = {{0, 0}, {1, 4}, {1, 5}};
  check(watched(other, ranks, way), "overflowing");
}

/// The same on several numbers of ranks and topologies, by one way of transport after another.
template <class Check>
void on_every_topology(const char* algorithm, const Check& check) {
  for (const int n : {2, 3, 4, 8}) {
    std::size_t turn = 0;
    for (const json& topology : doubly_stochastic(n)) {
      CAPTURE(n);
      CAPTURE(topology.dump());
      in_every_manner(job_of(algorithm, topology, kMomentum), n, kWays[turn++ % kWays.size()],
                      [&](const Steps& steps, const std::string& manner) {
                        CAPTURE(manner);
                        check(steps, manner);
                      });
    }
  }
}

}  // namespace

TEST_CASE("comm/kept: gradient tracking's y sum to the gradients' sum after every step") {
  on_every_topology("gradient_tracking", [](const Steps& steps, const std::string& manner) {
    for (const std::vector<Kept>& ranks : steps) {
      CHECK(largest_sum(ranks, [](const Kept& r, std::size_t e) {
              return r.of("y")[e] - r.of("g")[e];
            }) < 1e-12);
      if (manner == "as it is")  // then what is kept is what the step's backward pass left
        CHECK(largest_sum(ranks, [](const Kept& r, std::size_t e) {
                return r.of("y")[e] - r.gradients[e];
              }) < 1e-12);
    }
    CHECK(largest_in(steps.back()[0].of("y")) > 1e-2);
    CHECK_FALSE(same_bits(steps.back()[0].of("y"), steps.back()[1].of("y")));
  });
}

TEST_CASE("comm/kept: momentum tracking's corrections c sum to zero after every step") {
  on_every_topology("momentum_tracking", [](const Steps& steps, const std::string&) {
    const auto correction = [](const Kept& r, std::size_t e) {
      return r.of("z")[e] + r.momentum[e];
    };
    for (const std::vector<Kept>& ranks : steps) CHECK(largest_sum(ranks, correction) < 1e-12);
    double largest = 0.0;
    for (std::size_t e = 0; e < steps.back()[0].x.size(); ++e)
      largest = std::max(largest, std::abs(correction(steps.back()[0], e)));
    CHECK(largest > 1e-2);
  });
}

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
          Job job = job_of(algorithm, {{"type", topology}}, kMomentum);
          job.dtype = dtype;
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
              if (exchanged) CHECK(same_bits(mine.of("replica.0"), mine.x));
              int k = 0;
              for (const auto& [j, weight] : Topology::row(rounds->round(0), i)) {
                if (j == i) continue;
                const Kept& other = steps[t][static_cast<std::size_t>(j)];
                const Row& replica = mine.of("replica." + std::to_string(++k));
                CHECK(same_bits(replica, other.of("replica.0")));
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

TEST_CASE(
    "comm/kept: Choco's r is the mix of the neighbours' x_hat after every step, so that all "
    "believe the same") {
  for (const json& algorithm : {json{{"type", "choco"}}, json{{"type", "choco"},
                                                              {"compressor", "minmax8"},
                                                              {"block", 64},
                                                              {"consensus_step", 0.4}}}) {
    std::size_t turn = 0;
    for (const int n : {2, 3, 4, 8}) {
      for (const char* topology : {"static-ring", "star"}) {
        const Job job = job_of(algorithm, {{"type", topology}}, kMomentum);
        const Steps steps = watched(job, n, kWays[turn++ % kWays.size()]);
        CAPTURE(algorithm.dump());
        CAPTURE(topology);
        CAPTURE(n);
        const auto rounds = test::make_test_topology(job.topology, n);
        double off = 0.0, apart = 0.0;
        for (const std::vector<Kept>& ranks : steps) {
          for (int i = 0; i < n; ++i) {
            const Row& r = ranks[static_cast<std::size_t>(i)].of("r");
            Row mixed(r.size(), 0.0);
            for (const auto& [j, weight] : Topology::row(rounds->round(0), i)) {
              const Row& believed = ranks[static_cast<std::size_t>(j)].of("x_hat");
              for (std::size_t e = 0; e < r.size(); ++e) mixed[e] += weight * believed[e];
            }
            for (std::size_t e = 0; e < r.size(); ++e) {
              off = std::max(off, std::abs(mixed[e] - r[e]));
              apart = std::max(
                  apart, std::abs(mixed[e] - ranks[static_cast<std::size_t>(i)].of("x_hat")[e]));
            }
          }
        }
        CHECK(off < 1e-13);
        CHECK(apart > 1e-3);
      }
    }
  }
}
