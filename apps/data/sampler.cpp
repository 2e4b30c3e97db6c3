#include "apps/data/sampler.h"

#include <cstddef>
#include <numeric>
#include <string>
#include <utility>

#include "apps/data/builtin.h"
#include "core/error.h"
#include "core/random.h"

namespace starling {
namespace {

/// The epoch's order, distributed cyclically among ranks.
class ShuffleSampler final : public Sampler {
 public:
  std::vector<std::int64_t> epoch(const EpochInputs& inputs) const override {
    if (!inputs.share.empty()) {
      EpochInputs of_share = inputs;
      of_share.samples = std::ssize(inputs.share);
      std::vector<std::int64_t> order = epoch_order(of_share);
      for (std::int64_t& position : order)
        position = inputs.share[static_cast<std::size_t>(position)];
      return order;
    }
    return dealt_in_turn(epoch_order(inputs), inputs);
  }
  bool takes_partition() const override { return true; }
  bool takes_rest() const override { return true; }
};

}  // namespace

void Sampler::set_complexities(const std::vector<float>& complexities) {
  fail(ExitCode::kInternal, "sampler",
       "complexities of {} samples were set for a sampler that does not use them",
       complexities.size());
}

std::vector<std::int64_t> Sampler::order(const EpochInputs& inputs) const {
  return epoch_order(inputs);
}

std::vector<std::int64_t> epoch_order(const EpochInputs& inputs) {
  if (!inputs.left.empty()) return {inputs.left.begin(), inputs.left.end()};
  if (inputs.shuffle) {
    return random_permutation(inputs.seed, RandomStream::kPermutation,
                              static_cast<std::uint32_t>(inputs.epoch), inputs.samples);
  }
  std::vector<std::int64_t> order(static_cast<std::size_t>(inputs.samples));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return order;
}

std::vector<std::int64_t> dealt_in_turn(std::span<const std::int64_t> order,
                                        const EpochInputs& inputs) {
  const auto rank = static_cast<std::size_t>(inputs.rank),
             ranks = static_cast<std::size_t>(inputs.ranks);
  std::vector<std::int64_t> own(order.size() / ranks);
  for (std::size_t k = 0; k < own.size(); ++k) own[k] = order[rank + k * ranks];
  return own;
}

std::vector<std::int64_t> dealt(const Sampler& sampler, const EpochInputs& inputs,
                                std::int64_t needed) {
  const std::string where =
      fmt::format("{}{}epoch {} of rank {}", sampler.name(), sampler.name().empty() ? "" : ", ",
                  inputs.epoch, inputs.rank);
  std::vector<std::int64_t> own = named("sampler", where, [&] { return sampler.epoch(inputs); });
  if (std::ssize(own) < needed)
    fail(ExitCode::kUsage, "sampler", {.key = where}, "{} samples; the batches need {}", own.size(),
         needed);
  std::vector<char> seen(static_cast<std::size_t>(inputs.samples), 0);
  for (std::size_t k = 0; k < own.size(); ++k) {
    if (own[k] < 0 || own[k] >= inputs.samples) {
      fail(ExitCode::kUsage, "sampler", {.key = where},
           "place {} has sample {}; the training samples are 0 to {}", k, own[k],
           inputs.samples - 1);
    }
    if (std::exchange(seen[static_cast<std::size_t>(own[k])], char{1}) != 0 && !sampler.repeats())
      fail(ExitCode::kUsage, "sampler", {.key = where},
           "place {} has sample {} again; each comes once in an epoch", k, own[k]);
  }
  return own;
}

std::vector<std::int64_t> left_of_epoch(const Sampler& sampler, EpochInputs inputs,
                                        std::span<const TakenBatches> taken) {
  inputs.left = {};
  std::vector<std::int64_t> left = sampler.order(inputs);
  std::vector<std::int64_t> uses(static_cast<std::size_t>(inputs.samples), 0);
  for (const TakenBatches& batches : taken) {
    inputs.ranks = batches.ranks;
    inputs.batch_size = batches.batch_size;
    for (inputs.rank = 0; inputs.rank < inputs.ranks; ++inputs.rank) {
      const std::int64_t count = batches.batches * batches.batch_size;
      const std::vector<std::int64_t> own = dealt(sampler, inputs, count);
      for (std::int64_t i = 0; i < count; ++i)
        ++uses[static_cast<std::size_t>(own[static_cast<std::size_t>(i)])];
    }
    // Of a repeated sample, the first occurrences are the used ones.
    std::erase_if(left, [&](std::int64_t sample) {
      std::int64_t& count = uses[static_cast<std::size_t>(sample)];
      return count > 0 && count-- > 0;
    });
    inputs.left = left;
  }
  return left;
}

std::unique_ptr<Sampler> make_shuffle_sampler() { return std::make_unique<ShuffleSampler>(); }

SamplerRegistry& samplers() {
  static SamplerRegistry registry("sampler");
  return registry;
}

void register_builtin_samplers() {
  static const bool once = [] {
    samplers().add(
        "shuffle", [](ConfigSection&) { return make_shuffle_sampler(); },
        "the order of the epoch (`data.shuffle`), dealt to the ranks in turn");
    register_load_balanced_sampler(samplers());
    register_class_balanced_sampler(samplers());
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace starling
