#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "comm/exchange_plan.h"
#include "comm/mixer.h"
#include "comm/transports/sums.h"
#include "kernels/decode_sum.h"
#include "kernels/open_backend.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"

using namespace starling;

namespace {

float start_number(int rank, std::int64_t i) {
  return std::sin(0.37f * static_cast<float>(i) + 1.7f * static_cast<float>(rank)) + 0.001f;
}
float decoded(float x) { return static_cast<float>(BFloat16(x)); }

/// Every rank's numbers after one mix of `round`, straight from what the mixer gives.
std::vector<std::vector<double>> mixed(const Round& round, int ranks, std::int64_t count) {
  std::vector<std::vector<double>> result(static_cast<std::size_t>(ranks));
  FakeWorld world(ranks);
  world.run([&](Transport& transport) {
    const auto backend = open_backend(DeviceType::kCpu, 1);
    const std::unique_ptr<Mixer> mixer =
        mixers().make("bf16", "exchange").make(*backend, transport, {});
    Bucket bucket;
    bucket.parameters = Tensor(*backend, Shape{count}, DType::kFloat32);
    const Tensor place(*backend, Shape{count}, DType::kFloat32);
    test::set_numbers(bucket.parameters,
                      [&](std::int64_t i) { return start_number(transport.rank(), i); });
    const Exchange exchange = plan_exchange(round, transport.rank());
    const ExchangeLabel label{1, 0, 0};
    std::vector<Tensor> received;
    const Ticket ticket = mixer->start(exchange, bucket, {}, received, label);
    Mix terms;
    if (ticket != 0) {
      mixer->wait(ticket);
      mixer->terms(exchange, received, label, terms);
      if (terms.encoded) {
        decode_sum(*backend, terms.received, terms.encoded, 1.0, place, false);
        terms.received = {place};
      }
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

/// With the matrix of `round`, over nodes where it is one over nodes: the nodes' means and Σ_j w_ij
/// (C(x_j) - C(x_i)), written plainly.
void check_round(const Round& round, const std::vector<std::vector<double>>& matrix) {
  constexpr std::int64_t kCount = 96;
  const int nodes = static_cast<int>(matrix.size()), per_node = round.ranks_per_node;
  const auto result = mixed(round, nodes * per_node, kCount);
  const auto mean_of = [&](int node, std::int64_t i) {
    double mean = 0.0;
    for (int r = 0; r < per_node; ++r)
      mean += static_cast<double>(start_number(node * per_node + r, i)) / per_node;
    return mean;
  };
  double furthest = 0.0;  // from a mix in full precision
  for (std::int64_t i = 0; i < kCount; ++i) {
    double before = 0.0, after = 0.0;
    for (int node = 0; node < nodes; ++node) {
      const double own = mean_of(node, i);
      double expected = own, exact = 0.0;
      for (int other = 0; other < nodes; ++other) {
        const double weight =
            matrix[static_cast<std::size_t>(node)][static_cast<std::size_t>(other)];
        expected += weight * (static_cast<double>(decoded(static_cast<float>(mean_of(other, i)))) -
                              decoded(static_cast<float>(own)));
        exact += weight * mean_of(other, i);
      }
      for (int r = 0; r < per_node; ++r) {
        const double c =
            result[static_cast<std::size_t>(node * per_node + r)][static_cast<std::size_t>(i)];
        CHECK(c == doctest::Approx(expected).epsilon(1e-6));
        furthest = std::max(furthest, std::abs(c - exact));
        after += c;
      }
      before += own * per_node;
    }
    // a hundredth of what bf16 rounds away, and less
    CHECK(std::abs(after - before) / (nodes * per_node) < 3e-7);
  }
  CHECK(furthest > 1e-4);
  CHECK(furthest < 1e-2);
}

template <class T, class Sum>
void check_rank_order(DType dtype) {
  constexpr std::size_t kCount = 5000;
  std::array<std::vector<T>, 3> in;
  std::vector<const std::byte*> raw;
  for (std::size_t r = 0; r < in.size(); ++r) {
    for (std::size_t i = 0; i < kCount; ++i)
      in[r].push_back(
          static_cast<T>((r == 1 ? 1000.0f : 1.0f) *
                         start_number(static_cast<int>(r), static_cast<std::int64_t>(i))));
    raw.push_back(reinterpret_cast<const std::byte*>(in[r].data()));
  }
  std::vector<Sum> out(kCount);
  sum_in_order(dtype, raw, nullptr, kCount, reinterpret_cast<std::byte*>(out.data()));
  for (std::size_t i = 0; i < kCount; ++i)
    REQUIRE(out[i] ==
            static_cast<Sum>(in[0][i]) + static_cast<Sum>(in[1][i]) + static_cast<Sum>(in[2][i]));
}

}  // namespace

TEST_CASE(
    "comm/bf16: a pair, groups and rows mix differences of decoded numbers, and keep the mean, of "
    "ranks and of nodes") {
  for (const int per_node : {1, 2}) {
    CAPTURE(per_node);
    Round round;
    round.ranks_per_node = per_node;
    round.groups = {{{0, 1}, 2.0 / 3.0}};
    check_round(round, {{2.0 / 3, 1.0 / 3}, {1.0 / 3, 2.0 / 3}});
    round.groups = {{{0, 1, 2}, 1.0 / 3}};
    check_round(
        round,
        {{1.0 / 3, 1.0 / 3, 1.0 / 3}, {1.0 / 3, 1.0 / 3, 1.0 / 3}, {1.0 / 3, 1.0 / 3, 1.0 / 3}});
    if (per_node == 1) {  // a group and a rank alone
      round.groups = {{{0, 1, 3}, 0.5}};
      check_round(round,
                  {{0.5, 0.25, 0, 0.25}, {0.25, 0.5, 0, 0.25}, {0, 0, 1, 0}, {0.25, 0.25, 0, 0.5}});
    }
    round.groups.clear();
    round.rows = {
        {{0, 0.5}, {1, 0.5}}, {{1, 0.25}, {0, 0.25}, {2, 0.5}}, {{2, 0.5}, {0, 0.25}, {1, 0.25}}};
    check_round(round, {{0.5, 0.5, 0}, {0.25, 0.25, 0.5}, {0.25, 0.25, 0.5}});
  }
}

TEST_CASE("comm/sums: are made in rank order, those of bf16 numbers in fp32") {
  check_rank_order<float, float>(DType::kFloat32);
  check_rank_order<double, double>(DType::kFloat64);
  check_rank_order<BFloat16, float>(DType::kBFloat16);
}
