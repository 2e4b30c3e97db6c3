#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "apps/data/shards/in_order.h"

using namespace starling;

TEST_CASE("in_order: each thing once and in order, and the first failure") {
  for (const int threads : {1, 4}) {
    std::vector<std::int64_t> taken;
    in_order<std::int64_t>(
        threads, 100, [](std::int64_t item) { return item * item; },
        [&](std::int64_t item, std::int64_t thing) {
          CHECK(thing == item * item);
          taken.push_back(item);
          return item != 90;
        });
    CHECK(taken.size() == 91);
    const auto failing = [](std::int64_t item) -> std::int64_t {
      if (item >= 20) throw std::runtime_error(std::to_string(item));
      return item;
    };
    CHECK_THROWS_WITH(in_order<std::int64_t>(threads, 100, failing,
                                             [](std::int64_t, std::int64_t) { return true; }),
                      "20");
    CHECK_THROWS_WITH(in_order<std::int64_t>(
                          threads, 100, [](std::int64_t item) { return item; },
                          [](std::int64_t item, std::int64_t) -> bool {
                            throw std::logic_error(std::to_string(item));
                          }),
                      "0");
    in_order<std::int64_t>(
        threads, 0, [](std::int64_t item) { return item; },
        [](std::int64_t, std::int64_t) { return true; });
  }
}
