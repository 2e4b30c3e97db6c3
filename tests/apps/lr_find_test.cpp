// The learning-rate range test.
#include "apps/trainer/lr_find.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/csv.h"
#include "tests/apps/class_table.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

using test::make_table;
using test::Program;

}  // namespace

TEST_CASE("lr-find: what a test of rates says") {
  std::vector<RangePoint> points;
  double loss = 0.0;
  int added = 0;
  for (int i = 0; i < 100; ++i, ++added) {
    const double lr = 1e-4 * std::pow(10.0, i / 20.0), x = std::log10(lr);
    loss =
        x < -2.0 ? 2.0 - 1.0 / (1.0 + std::exp(-6.0 * (x + 3.0))) : 1.0 + std::exp(3.0 * (x + 1.0));
    if (!add_range_point(points, lr, loss)) break;
  }
  CHECK(added < 100);
  CHECK(points.front().smoothed == doctest::Approx(points.front().loss));
  // the smoothed losses by their definition
  double mean = 0.0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    mean = 0.98 * mean + 0.02 * points[i].loss;
    CHECK(points[i].smoothed ==
          doctest::Approx(mean / (1.0 - std::pow(0.98, static_cast<double>(i + 1)))));
  }
  const auto found = findings_of(points);
  REQUIRE(found);
  CHECK(found->steepest > 5e-4);
  CHECK(found->steepest < found->least);
  CHECK_FALSE(found->still_falling);
  // Noise in the first losses decides nothing.
  points[1].smoothed = points[0].smoothed - 0.5;
  const auto noisy = findings_of(points);
  REQUIRE(noisy);
  CHECK(noisy->steepest == found->steepest);
  CHECK_FALSE(add_range_point(points, 1.0, std::nan("")));
  CHECK_FALSE(findings_of({{0.1, 1, 1}, {0.2, 2, 2}, {0.3, 3, 3}, {0.4, 4, 4}}));
  CHECK(findings_of({{0.1, 4, 4}, {0.2, 3, 3}, {0.3, 2, 2}})->still_falling);
}

TEST_CASE("lr-find: growing rates on all ranks, and nothing is left but the table") {
  const Program program;
  make_table(program);
  program.play(R"table(
0 2 | as it is | ^suggested: --set optimizer.lr=[0-9.e-]+, where the loss falls fastest | run.json --lr-find rates.csv
line rates.csv ^1,1e-07,
lacks runs
0 2 | another range | ^suggested|^the loss does not fall | run.json --lr-find few.csv --lr-from 0.001 --lr-to 0.1 --lr-steps 5
line few.csv ^5,0\.(1|09999)
2 1 | the wrong way round | --lr-from 1 --lr-to 0.1 .*needed: 0 < from < to | run.json --lr-find x.csv --lr-from 1 --lr-to 0.1
2 1 | too few | needed: .*3 to 1000000 steps | run.json --lr-find x.csv --lr-steps 2
2 1 | nothing to find | --lr-steps is given without --lr-find | run.json --lr-steps 20
2 1 | with a folder | does not go with --output | run.json --lr-find x.csv --output run
2 1 | a rule of one rate | schedule_free_adamw needs one rate in all | run.json --lr-find x.csv | optimizer={"type": "schedule_free_adamw"}
lacks x.csv run
)table");
  // The first steps are those of a run at these rates, by one rank and without the mean of two.
  CsvFile rates = CsvFile::read("rates.csv");
  REQUIRE(rates.next());
  program.play(
      "0 2 | a run at the first rate | done | run.json --output run | optimizer.lr=1e-7 | steps=1");
  const std::string first = program.read("run/metrics.jsonl");
  CHECK(nlohmann::json::parse(first.substr(0, first.find('\n')))["loss"].get<double>() ==
        doctest::Approx(rates.number(2)).epsilon(1e-6));
}

}  // namespace starling
