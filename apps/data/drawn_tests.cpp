#include "apps/data/drawn_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/checksum.h"
#include "core/error.h"
#include "core/log.h"
#include "core/random.h"

namespace starling {
namespace {

std::uint64_t draw_of(std::uint64_t seed, const std::string& name) {
  const Philox4x32 bits =
      random_bits(seed, RandomStream::kPartition, 0, std::stoull(checksum(name), nullptr, 16));
  return std::uint64_t{bits.v[0]} << 32 | bits.v[1];
}

}  // namespace

double read_val_fraction(ConfigSection& section, bool own_tests, double usual,
                         const std::string& doc) {
  constexpr const char* kKey = "val_fraction";
  if (own_tests && !section.has(kKey)) return 0.0;
  const double fraction = section.number(kKey, usual, Range::half_open(0.0, 1.0), doc);
  if (own_tests && fraction > 0.0)
    section.error(kKey,
                  "is given beside data.val_path, whose samples are the tests; leave one out");
  return fraction;
}

DrawnTests own_tests(std::int64_t first, std::int64_t samples) {
  DrawnTests tests;
  for (std::int64_t sample = 0; sample < samples; ++sample)
    (sample < first ? tests.train : tests.test).push_back(sample);
  return tests;
}

DrawnTests draw_tests(const TestDraw& draw) {
  DrawnTests drawn{.share = draw.kept ? *draw.kept
                                      : TestShare{.seed = draw.seed, .most = {}, .by = draw.by}};
  auto& most = drawn.share.most;
  most.resize(static_cast<std::size_t>(draw.classes));
  std::vector<std::uint64_t> draws;
  std::vector<std::vector<std::uint64_t>> of_class(most.size());
  for (std::int64_t sample = 0; sample < draw.samples; ++sample) {
    draws.push_back(draw_of(drawn.share.seed, draw.name(sample)));
    of_class[static_cast<std::size_t>(draw.label(sample))].push_back(draws.back());
  }
  for (std::size_t label = 0; label < most.size() && !draw.kept; ++label) {
    std::vector<std::uint64_t>& sorted = of_class[label];
    const auto all = std::ssize(sorted);
    // At least one sample of each class remains for training.
    const auto aside =
        std::min<std::int64_t>(std::llround(static_cast<double>(all) * draw.fraction), all - 1);
    std::sort(sorted.begin(), sorted.end());
    if (aside > 0) most[label] = sorted[static_cast<std::size_t>(aside) - 1];
  }
  std::uint64_t digest = 0;
  for (std::int64_t sample = 0; sample < draw.samples; ++sample) {
    const std::uint64_t own = draws[static_cast<std::size_t>(sample)];
    const auto& limit = most[static_cast<std::size_t>(draw.label(sample))];
    const bool test = limit && own <= *limit;
    if (test) digest += own;
    (test ? drawn.test : drawn.train).push_back(sample);
  }
  const auto tests = std::ssize(drawn.test);
  if (tests == 0 && draw.kept)
    fail(ExitCode::kUsage, "data",
         "{}: {} has none of the {}s that the model file keeps for tests; to test all of it: "
         "--test PATH",
         draw.who, draw.where, draw.noun);
  if (tests == 0)
    fail(ExitCode::kUsage, "data", "{}: data.val_fraction {} of {}; use a larger one", draw.who,
         draw.fraction, draw.too_small);
  if (!draw.kept) {
    drawn.share.tests = tests;
    drawn.share.digest = digest;
  } else {  // logged by the first rank only
    const TestShare& share = drawn.share;
    const bool same = share.tests == 0 || (share.tests == tests && share.digest == digest);
    const std::string own =
        draw.limit > 0 && draw.limit < tests ? fmt::format("{} of ", draw.limit) : "";
    if (same) {
      log::info("data: tests take {}the {} {}{} of {} that the model's run held out", own, tests,
                draw.noun, tests == 1 ? "" : "s", draw.where);
    } else {
      log::info(
          "data: tests take {}{} of the {} {}s of {}, by the share that the model's run drew "
          "when it held out {}; to test all of another set: --test PATH",
          own, tests, draw.samples, draw.noun, draw.where, share.tests);
    }
  }
  return drawn;
}

}  // namespace starling
