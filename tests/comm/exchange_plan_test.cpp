#include "comm/exchange_plan.h"

#include <doctest/doctest.h>

using namespace starling;

TEST_CASE("comm/exchange_plan: a pair sends and receives with its weights") {
  Round round;
  round.groups = {{{0, 3}, 0.25}};
  const Exchange a = plan_exchange(round, 3);
  CHECK(a.kind == Exchange::Kind::kNeighbours);
  CHECK(a.send_to == std::vector<int>{0});
  CHECK(a.receive_from == std::vector<int>{0});
  CHECK(a.self_weight == 0.25);
  CHECK(a.weights == std::vector<double>{0.75});
  CHECK(plan_exchange(round, 1).kind == Exchange::Kind::kNone);
  CHECK(plan_exchange(round, 1).self_weight == 1.0);
}

TEST_CASE("comm/exchange_plan: a group of three or more is one sum") {
  Round round;
  round.groups = {{{1, 2, 5}, 0.5}, {{0, 3, 4, 6}, 0.25}, {{7}, 1.0}};
  const Exchange a = plan_exchange(round, 2);
  CHECK(a.kind == Exchange::Kind::kGroupSum);
  CHECK(a.group == std::vector<int>{1, 2, 5});
  CHECK(a.received() == 1);
  CHECK(a.self_weight == doctest::Approx(0.25));  // w - ω = 1/2 - 1/4
  CHECK(a.weights == std::vector<double>{0.25});
  const Exchange b = plan_exchange(round, 6);
  CHECK(b.self_weight == doctest::Approx(0.0));  // uniform: the sum says it all
  CHECK(b.weights[0] == doctest::Approx(0.25));
  CHECK(plan_exchange(round, 7).kind == Exchange::Kind::kNone);
}

TEST_CASE("comm/exchange_plan: rows become sends and receives") {
  Round round;  // 0 hears 1 and 2; 1 hears 0; 2 hears nobody
  round.rows = {{{0, 0.5}, {1, 0.3}, {2, 0.2}}, {{0, 0.6}, {1, 0.4}}, {{2, 1.0}}};
  const Exchange a = plan_exchange(round, 0);
  CHECK(a.kind == Exchange::Kind::kNeighbours);
  CHECK(a.send_to == std::vector<int>{1});
  CHECK(a.receive_from == std::vector<int>{1, 2});
  CHECK(a.self_weight == 0.5);
  CHECK(a.weights == std::vector<double>{0.3, 0.2});
  const Exchange c = plan_exchange(round, 2);
  CHECK(c.send_to == std::vector<int>{0});
  CHECK(c.receive_from.empty());
  CHECK(c.self_weight == 1.0);
}

TEST_CASE(
    "comm/exchange: a round over nodes gives each rank its shard's peers, a lone node its mean, "
    "and flat the matrix over ranks") {
  Round round;
  round.ranks_per_node = 3;
  round.groups = {{{0, 2}, 0.75}, {{1}, 1.0}};
  const Exchange a = plan_exchange(round, 7);
  CHECK(a.kind == Exchange::Kind::kNodes);
  CHECK(a.group == std::vector<int>{6, 7, 8});
  CHECK(a.send_to == std::vector<int>{1});
  CHECK(a.receive_from == std::vector<int>{1});
  CHECK(a.own_share == 0.75);
  CHECK(a.shares == std::vector<double>{0.25});
  CHECK(a.self_weight == 0.0);
  CHECK(a.weights == std::vector<double>{1.0});
  CHECK(a.received() == 1);
  const Exchange b = plan_exchange(round, 4);
  CHECK(b.kind == Exchange::Kind::kGroupSum);
  CHECK(b.group == std::vector<int>{3, 4, 5});
  const Exchange flat = plan_exchange(round, 7, true);
  CHECK(flat.kind == Exchange::Kind::kNeighbours);
  CHECK(flat.receive_from == std::vector<int>{0, 1, 2, 6, 8});
  CHECK(flat.self_weight == doctest::Approx(0.25));
  round.groups = {{{0, 1, 2}, 1.0 / 3}};
  const Exchange c = plan_exchange(round, 4);
  CHECK(c.receive_from == std::vector<int>{1, 7});
  CHECK(c.own_share == doctest::Approx(1.0 / 3));
  CHECK(c.shares.size() == 2);
  round.groups.clear();
  round.rows = {{{0, 0.5}, {2, 0.5}}, {{0, 0.5}, {1, 0.5}}, {{1, 0.5}, {2, 0.5}}};  // directed
  const Exchange d = plan_exchange(round, 5);
  CHECK(d.receive_from == std::vector<int>{2});
  CHECK(d.send_to == std::vector<int>{8});
}
