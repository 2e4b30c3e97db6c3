// The learning-rate range test.
#include "apps/training/lr_find.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
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
  // The losses fall fastest at 1e-3 and are least near 1e-2; a fifth of the steps is a decade.
  REQUIRE(found->steepest);
  CHECK(*found->steepest > 6e-4);
  CHECK(*found->steepest < 1.7e-3);
  CHECK(found->least > 5e-3);
  CHECK(found->least < 3e-2);
  CHECK_FALSE(found->still_falling);
  CHECK_FALSE(add_range_point(points, 1.0, std::nan("")));
}

namespace {

/// A test of `steps` steps from 1e-7 to 10 with such losses, of log10(rate).
template <class Loss>
std::optional<RangeFindings> findings(int steps, Loss loss) {
  std::vector<RangePoint> points;
  for (int i = 0; i < steps; ++i) {
    const double x = -7.0 + 8.0 * i / (steps - 1);
    points.push_back({std::pow(10.0, x), loss(i, x), 0.0});
  }
  return findings_of(points);
}

/// Falls from 2 to 0.5 around 1e-2.
double fall(double x) { return 2.0 - 1.5 / (1.0 + std::exp(-3.0 * (x + 2.0))); }

}  // namespace

TEST_CASE("lr-find: noise and spikes are no fall, and hide none") {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  int from_noise = 0, tries = 0;
  for (const int steps : {7, 20, 50, 100, 1000}) {
    for (int seed = 0; seed < 40; ++seed) {
      const auto flat = findings(steps, [&](int, double) { return 1.0 + 0.3 * normal(random); }),
                 heavy = findings(steps, [&](int, double) { return std::exp(normal(random)); }),
                 rising = findings(
                     steps, [&](int, double x) { return fall(-4.0 - x) + 0.1 * normal(random); }),
                 // as the first losses of a start from scratch may be
          spiky = findings(steps, [&](int i, double) {
            return 1.0 + 0.1 * normal(random) + (i < 3 ? 20.0 / (1 + i) : 0.0);
          });
      for (const auto* one : {&flat, &heavy, &rising, &spiky}) {
        REQUIRE(*one);
        from_noise += (*one)->steepest ? 1 : 0;
        ++tries;
      }
    }
  }
  CHECK(from_noise * 100 <= tries);  // by the rule one in some hundred
  CHECK_FALSE(findings(100, [](int, double) { return 1.0; })->steepest);
  CHECK_FALSE(findings(100, [](int, double x) { return 2.0 + x; })->steepest);
  for (int seed = 0; seed < 40; ++seed) {
    const auto found = findings(100, [&](int i, double x) {
      const double spike = i < 5 || i == 30 ? 30.0 : 1.0;
      return spike * fall(x) * (1.0 + 0.15 * normal(random));
    });
    REQUIRE(found);
    REQUIRE(found->steepest);
    CHECK(*found->steepest > 1e-3);
    CHECK(*found->steepest < 1e-1);
  }
  CHECK(findings(100, [](int, double x) { return -x; })->still_falling);
  CHECK_FALSE(findings(6, [](int, double x) { return -x; }));
}

TEST_CASE("lr-find: growing rates on all ranks, and nothing is left but the table") {
  const Program program;
  make_table(program);
  program.play(R"table(
0 2 | as it is | ^suggested: --set optimizer.lr=[0-9.e-]+, where the loss falls fastest | run.json --lr-find rates.csv
line rates.csv ^1,1e-07,
lacks runs
0 2 | another range | ^suggested|^no suggestion: between 0.001 and | run.json --lr-find few.csv --lr-from 0.001 --lr-to 0.1 --lr-steps 5
line few.csv ^5,0\.(1|09999)
2 1 | the wrong way round | --lr-from 1 --lr-to 0.1: the last is to be the larger | run.json --lr-find x.csv --lr-from 1 --lr-to 0.1
2 1 | too few | --lr-steps: expected a whole number from 3 to 1000000, found .2. | run.json --lr-find x.csv --lr-steps 2
2 1 | nothing to find | --lr-steps requires --lr-find | run.json --lr-steps 20
2 1 | with a folder | --output excludes --lr-find | run.json --lr-find x.csv --output run
2 1 | a rule of one rate | schedule_free_adamw needs one rate in all | run.json --lr-find x.csv | optimizer={"type": "schedule_free_adamw"}
lacks x.csv run
copy run.json mine.json
2 1 | a file of another kind | --lr-find mine.json: the file is there already and holds no table of rates | run.json --lr-find mine.json
2 1 | a timeline | trace mine.json: the file is there already and holds no timeline of a run | run.json --trace mine.json --output run
2 1 | numbers for Prometheus | prometheus mine.json: the file is there already and holds no numbers of a run | run.json --output run | prometheus=mine.json
alike run.json mine.json
lacks run
0 2 | its own | ^suggested|^no suggestion | run.json --lr-find few.csv --lr-steps 8
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
