#include "apps/data/complexity.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"

namespace starling {
namespace {

/// Numbers per reduction: a world may implement a sum by gathering.
constexpr std::size_t kSumPiece = std::size_t{1} << 16;

std::vector<float> declared_complexities(const Dataset& dataset, World& world) {
  std::vector<float> cost(static_cast<std::size_t>(dataset.info().train_samples));
  on_all_ranks(world, [&] {
    for (std::size_t i = 0; i < cost.size(); ++i) {
      const double complexity =
          dataset.complexity(Dataset::Split::kTrain, static_cast<std::int64_t>(i));
      if (complexity >= 0.0 &&
          complexity <= static_cast<double>(std::numeric_limits<float>::max())) {
        cost[i] = static_cast<float>(complexity);
        continue;
      }
      fail(ExitCode::kUsage, "data",
           "training sample {} has complexity {}; needed: a finite number >= 0", i, complexity);
    }
  });
  if (world.size() == 1) return cost;
  const std::string mine(reinterpret_cast<const char*>(cost.data()), cost.size() * sizeof(float));
  if (const auto found = find_disagreement(world, mine)) {
    const std::size_t common = std::min(found->first.size(), found->other.size());
    const auto differs = std::mismatch(found->first.begin(),
                                       found->first.begin() + static_cast<std::ptrdiff_t>(common),
                                       found->other.begin());
    fail_on_all_ranks(
        ExitCode::kUsage, "data", {},
        "ranks 0 and {} find another complexity for training sample {}; needed: the same data on "
        "every host",
        found->rank,
        (differs.first - found->first.begin()) / static_cast<std::ptrdiff_t>(sizeof(float)));
  }
  return cost;
}

/// Evaluates of(sample) for each training sample, rank i of n for samples i, i+n, …; all ranks get
/// all values.
std::vector<double> of_all_samples(const Dataset& dataset, World& world,
                                   const std::function<double(std::int64_t sample)>& of) {
  const std::int64_t samples = dataset.info().train_samples;
  std::vector<double> numbers(static_cast<std::size_t>(samples), 0.0);
  on_all_ranks(world, [&] {
    for (std::int64_t sample = world.rank(); sample < samples; sample += world.size())
      numbers[static_cast<std::size_t>(sample)] = of(sample);
  });
  if (world.size() > 1) {  // each entry is nonzero on one rank at most, so the sum collects them
    for (std::size_t first = 0; first < numbers.size(); first += kSumPiece)
      world.sum(numbers.data() + first, std::min(kSumPiece, numbers.size() - first));
  }
  return numbers;
}

std::vector<float> measured_complexities(const Dataset& dataset, World& world) {
  using Clock = std::chrono::steady_clock;
  const SampleMemory memory(dataset.info());
  const auto begin = Clock::now();
  std::vector<double> milliseconds = of_all_samples(dataset, world, [&](std::int64_t sample) {
    const auto before = Clock::now();
    dataset.read(Dataset::Split::kTrain, sample, memory.places);
    return std::chrono::duration<double, std::milli>(Clock::now() - before).count();
  });
  const std::vector<float> cost(milliseconds.begin(), milliseconds.end());
  std::sort(milliseconds.begin(), milliseconds.end());
  log::info(
      "reading a training sample takes {:.3g} ms (median), {:.3g} ms at most; measured on {} "
      "samples in {:.1f} s",
      milliseconds[milliseconds.size() / 2], milliseconds.back(), milliseconds.size(),
      std::chrono::duration<double>(Clock::now() - begin).count());
  return cost;
}

}  // namespace

std::vector<std::int32_t> targets_that_count(const Dataset& dataset, World& world) {
  using Clock = std::chrono::steady_clock;
  constexpr double kLong = 5.0;
  const auto begin = Clock::now();
  const std::vector<double> counts = of_all_samples(dataset, world, [&](std::int64_t sample) {
    return static_cast<double>(dataset.counted_targets(sample));
  });
  if (const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      seconds > kLong)
    log::info(
        "it took {:.1f} s to count the targets of {} samples; a data set whose targets all count "
        "can say so (DatasetInfo::all_count)",
        seconds, counts.size());
  return {counts.begin(), counts.end()};
}

std::vector<float> agree_on_complexities(const Dataset& dataset, Sampler::Complexity source,
                                         World& world) {
  require(source != Sampler::Complexity::kNone, "data",
          "complexities were requested, but the sampler needs none");
  return source == Sampler::Complexity::kDeclared ? declared_complexities(dataset, world)
                                                  : measured_complexities(dataset, world);
}

}  // namespace starling
