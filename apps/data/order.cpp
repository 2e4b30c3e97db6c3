#include <numeric>
#include <vector>

#include "apps/data/loader.h"
#include "core/random.h"

namespace starling {

std::vector<std::int64_t> epoch_samples(std::int64_t samples, const LoaderSettings& settings, std::int64_t epoch) {
  std::vector<std::int64_t> order;
  if (settings.shuffle) {
    order = random_permutation(settings.seed, RandomStream::kPermutation, static_cast<std::uint32_t>(epoch), samples);
  } else {
    order.resize(static_cast<std::size_t>(samples));
    std::iota(order.begin(), order.end(), std::int64_t{0});
  }
  std::vector<std::int64_t> own(static_cast<std::size_t>(samples / settings.ranks));
  for (std::size_t k = 0; k < own.size(); ++k) {
    own[k] = order[static_cast<std::size_t>(settings.rank) + k * static_cast<std::size_t>(settings.ranks)];
  }
  return own;
}

Augmentation augmentation_of(std::uint64_t seed, std::int64_t epoch, std::int64_t sample, std::int64_t crop_padding, bool flip) {
  if (crop_padding == 0 && !flip) return {};
  const Philox4x32 bits = random_bits(seed, RandomStream::kAugment, static_cast<std::uint32_t>(epoch), static_cast<std::uint64_t>(sample));
  const auto below = [](std::uint32_t word, std::int64_t bound) {
    return static_cast<std::int32_t>((std::uint64_t{word} * static_cast<std::uint64_t>(bound)) >> 32);
  };
  return {below(bits.v[0], 2 * crop_padding + 1), below(bits.v[1], 2 * crop_padding + 1), flip ? below(bits.v[2], 2) : 0};
}

}  // namespace starling
