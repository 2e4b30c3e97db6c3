#include "comm/mixers/bf16.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "comm/exchange_plan.h"
#include "comm/transports/rank_order_sum.h"
#include "kernels/open_backend.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"

using namespace starling;
using test::Job;

namespace {

float start_number(int rank, std::int64_t i) { return std::sin(0.37f * static_cast<float>(i) + 1.7f * static_cast<float>(rank)) + 0.001f; }
float decoded(float x) { return static_cast<float>(BFloat16(x)); }

/// Every rank's numbers after one mix of `round`, straight from what the mixer gives.
std::vector<std::vector<double>> mixed(const Round& round, int ranks, std::int64_t count) {
  std::vector<std::vector<double>> result(static_cast<std::size_t>(ranks));
  FakeWorld world(ranks);
  world.run([&](Transport& transport) {
    const auto backend = open_backend(DeviceType::kCpu, 1);
    const std::unique_ptr<Mixer> mixer = bf16_mixer().make(*backend, transport, {});
    Bucket bucket;
    bucket.parameters = Tensor(*backend, Shape{count}, DType::kFloat32);
    test::set_numbers(bucket.parameters, [&](std::int64_t i) { return start_number(transport.rank(), i); });
    const Exchange exchange = plan_exchange(round, transport.rank());
    const ExchangeLabel label{1, 0, 0};
    std::vector<Tensor> received;
    const Ticket ticket = mixer->start(exchange, bucket, {}, received, label);
    Mix terms;
    if (ticket != 0) {
      mixer->wait(ticket);
      mixer->terms(exchange, received, label, terms);
    }
    std::vector<double> c = test::numbers(bucket.parameters);
    for (double& value : c) value *= terms.self_weight;
    for (std::size_t k = 0; k < terms.received.size(); ++k) {
      const std::vector<double> term = test::numbers(terms.received[k]);
      for (std::size_t i = 0; i < c.size(); ++i) c[i] += terms.weights[k] * term[i];
    }
    result[static_cast<std::size_t>(transport.rank())] = c;
  });
  return result;
}

/// x_i + Σ_j w_ij (C(x_j) - C(x_i)), written plainly.
double plain(const std::vector<std::vector<double>>& matrix, int rank, std::int64_t i) {
  double c = start_number(rank, i);
  for (std::size_t j = 0; j < matrix.size(); ++j) {
    c += matrix[static_cast<std::size_t>(rank)][j] *
         (static_cast<double>(decoded(start_number(static_cast<int>(j), i))) - decoded(start_number(rank, i)));
  }
  return c;
}

void check_round(const Round& round, const std::vector<std::vector<double>>& matrix) {
  constexpr std::int64_t kCount = 96;
  const int ranks = static_cast<int>(matrix.size());
  const auto result = mixed(round, ranks, kCount);
  double furthest = 0.0;  // from a mix in full precision
  for (std::int64_t i = 0; i < kCount; ++i) {
    double before = 0.0, after = 0.0;
    for (int r = 0; r < ranks; ++r) {
      const double c = result[static_cast<std::size_t>(r)][static_cast<std::size_t>(i)];
      CHECK(c == doctest::Approx(plain(matrix, r, i)).epsilon(1e-6));
      double exact = 0.0;
      for (int j = 0; j < ranks; ++j) exact += matrix[static_cast<std::size_t>(r)][static_cast<std::size_t>(j)] * start_number(j, i);
      furthest = std::max(furthest, std::abs(c - exact));
      before += start_number(r, i);
      after += c;
    }
    CHECK(std::abs(after - before) / ranks < 3e-7);  // a hundredth of what bf16 rounds away, and less
  }
  CHECK(furthest > 1e-4);
  CHECK(furthest < 1e-2);
}

}  // namespace

TEST_CASE("comm/bf16: a pair, groups and rows mix differences of decoded numbers, and keep the mean") {
  SUBCASE("a pair with unequal weights") {
    Round round;
    round.groups = {{{0, 1}, 2.0 / 3.0}};
    check_round(round, {{2.0 / 3, 1.0 / 3}, {1.0 / 3, 2.0 / 3}});
  }
  SUBCASE("a group of three and a rank alone") {
    Round round;
    round.groups = {{{0, 1, 3}, 0.5}};
    check_round(round, {{0.5, 0.25, 0, 0.25}, {0.25, 0.5, 0, 0.25}, {0, 0, 1, 0}, {0.25, 0.25, 0, 0.5}});
  }
  SUBCASE("rows") {
    Round round;
    round.rows = {{{0, 0.5}, {1, 0.5}}, {{1, 0.25}, {0, 0.25}, {2, 0.5}}, {{2, 0.5}, {0, 0.25}, {1, 0.25}}};
    check_round(round, {{0.5, 0.5, 0}, {0.25, 0.25, 0.5}, {0.25, 0.25, 0.5}});
  }
}

TEST_CASE("comm/bf16: training keeps the mean, comes close, and does not depend on transport, buckets or resume") {
  for (const char* type : {"base-2", "complete", "random-matching"}) {
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(type);
      CAPTURE(ranks);
      Job job;
      job.topology = {{"type", type}};
      job.exchange = "bf16";
      job.start_apart = true;
      job.lr = 0.0;
      job.steps = 0;
      const auto start = test::run_fake(job, ranks);
      job.steps = 40;
      const auto end = test::run_fake(job, ranks);
      double apart = 0.0;
      for (std::size_t i = 0; i < start[0].size(); ++i) {
        double before = 0.0, after = 0.0, size = 1.0;
        for (int r = 0; r < ranks; ++r) {
          const auto at = static_cast<std::size_t>(r);
          before += start[at][i] / ranks;
          after += end[at][i] / ranks;
          apart = std::max(apart, std::abs(end[at][i] - end[0][i]) / std::max(1.0, std::abs(end[0][i])));
          size = std::max(size, std::abs(start[at][i]));
        }
        CHECK(std::abs(after - before) < 2e-6 * size);
      }
      CHECK(apart < 0.05);  // of bf16's own step of 1/128 some remain

      job.lr = 0.1;
      job.steps = 9;
      const auto expected = test::run_fake(job, ranks);
      job.bucket_bytes = 1e6;
      CHECK(test::run_fake(job, ranks) == expected);
      job.overlap = false;
      job.finish_every = 2;
      job.resume_after = 5;
      CHECK(test::run_fake(job, ranks, {0.0005, 3}) == expected);
      CHECK(test::run_fake(job, ranks, {0.0, 3, true, 2}) == expected);  // hosts of two ranks
      job.exchange = "fp32";
      if (ranks > 1) CHECK(test::run_fake(job, ranks) != expected);
    }
  }
}

TEST_CASE("comm/bf16: between nodes means travel rounded, differences of decoded numbers keep the nodes' mean") {
  // Two nodes of two ranks, and three nodes of which two mix with unequal weights.
  const auto mean_of = [](int node, std::int64_t i) {
    return static_cast<double>(start_number(2 * node, i)) / 2 + static_cast<double>(start_number(2 * node + 1, i)) / 2;
  };
  Round round;
  round.ranks_per_node = 2;
  std::vector<std::vector<double>> nodes;
  SUBCASE("a pair of nodes") {
    round.groups = {{{0, 1}, 0.5}};
    nodes = {{0.5, 0.5}, {0.5, 0.5}};
  }
  SUBCASE("rows of three nodes") {
    round.rows = {{{0, 0.5}, {1, 0.5}}, {{1, 0.25}, {0, 0.25}, {2, 0.5}}, {{2, 0.5}, {0, 0.25}, {1, 0.25}}};
    nodes = {{0.5, 0.5, 0}, {0.25, 0.25, 0.5}, {0.25, 0.25, 0.5}};
  }
  SUBCASE("a group of three nodes") {
    round.groups = {{{0, 1, 2}, 1.0 / 3}};
    nodes = {{1.0 / 3, 1.0 / 3, 1.0 / 3}, {1.0 / 3, 1.0 / 3, 1.0 / 3}, {1.0 / 3, 1.0 / 3, 1.0 / 3}};
  }
  constexpr std::int64_t kCount = 97;
  const auto count = static_cast<int>(nodes.size());
  const auto result = mixed(round, 2 * count, kCount);
  double furthest = 0.0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    double before = 0.0, after = 0.0;
    for (int node = 0; node < count; ++node) {
      double expected = mean_of(node, i), exact = 0.0;
      for (int other = 0; other < count; ++other) {
        const double weight = nodes[static_cast<std::size_t>(node)][static_cast<std::size_t>(other)];
        expected += weight * (static_cast<double>(decoded(static_cast<float>(mean_of(other, i)))) -
                              static_cast<double>(decoded(static_cast<float>(mean_of(node, i)))));
        exact += weight * mean_of(other, i);
      }
      for (const int rank : {2 * node, 2 * node + 1}) {
        const double c = result[static_cast<std::size_t>(rank)][static_cast<std::size_t>(i)];
        CHECK(c == doctest::Approx(expected).epsilon(1e-6));
        furthest = std::max(furthest, std::abs(c - exact));
        after += c;
      }
      before += 2.0 * mean_of(node, i);
    }
    CHECK(std::abs(after - before) / (2 * count) < 3e-7);
  }
  CHECK(furthest > 1e-4);  // it was rounded
  CHECK(furthest < 1e-2);
}

TEST_CASE("comm/bf16: rounds over nodes give the same bits wherever the ranks are") {
  Job job;
  job.topology = {{"type", "hierarchical"}, {"ranks_per_node", 2}, {"inter", {{"type", "complete"}}}};
  job.exchange = "bf16";
  job.start_apart = true;
  job.steps = 8;
  const auto expected = test::run_fake(job, 4);
  CHECK(test::run_fake(job, 4, {0.0005, 3, true, 2}) == expected);
  job.bucket_bytes = 1e6;
  CHECK(test::run_fake(job, 4) == expected);
  job.lr = 0.0;  // one round of the topology brings all to the mean
  const auto mean = test::run_fake(job, 4);
  for (std::size_t i = 0; i < mean[0].size(); ++i) CHECK(mean[3][i] == doctest::Approx(mean[0][i]).epsilon(0.01));
  job.exchange = "fp32";
  CHECK(test::run_fake(job, 4) != mean);
}

TEST_CASE("comm/bf16: sums of bf16 numbers are made in fp32, in rank order") {
  constexpr std::int64_t kCount = 5000;
  std::vector<BFloat16> a(kCount), b(kCount), c(kCount);
  std::vector<float> out(kCount);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<std::size_t>(i);
    a[at] = BFloat16(start_number(0, i));
    b[at] = BFloat16(1000.0f * start_number(1, i));
    c[at] = BFloat16(start_number(2, i));
  }
  const std::array<const std::byte*, 3> in{reinterpret_cast<const std::byte*>(a.data()), reinterpret_cast<const std::byte*>(b.data()),
                                           reinterpret_cast<const std::byte*>(c.data())};
  sum_in_rank_order(DType::kBFloat16, in.data(), 3, kCount, reinterpret_cast<std::byte*>(out.data()));
  for (std::size_t i = 0; i < kCount; ++i)
    REQUIRE(out[i] == static_cast<float>(a[i]) + static_cast<float>(b[i]) + static_cast<float>(c[i]));
}
