// Draws every class equally often, whatever its number of samples. Unlike torch's
// WeightedRandomSampler, which draws samples independently, a class goes through all its samples
// before it repeats one, and the counts of classes in an epoch differ by at most one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "apps/data/builtin.h"
#include "apps/data/sampler.h"
#include "core/error.h"
#include "core/random.h"

namespace starling {
namespace {

class ClassBalancedSampler final : public Sampler {
 public:
  bool takes_rest() const override { return true; }
  bool repeats() const override { return true; }
  bool by_class() const override { return true; }
  void set_classes(std::span<const std::int32_t> classes) override {
    members_.clear();
    for (std::size_t i = 0; i < classes.size(); ++i) {
      const auto of = static_cast<std::size_t>(classes[i]);
      if (of >= members_.size()) members_.resize(of + 1);
      members_[of].push_back(static_cast<std::int64_t>(i));
    }
    std::erase_if(members_, [](const auto& members) { return members.empty(); });
  }

  std::vector<std::int64_t> epoch(const EpochInputs& inputs) const override {
    return dealt_in_turn(order(inputs), inputs);
  }
  std::vector<std::int64_t> order(const EpochInputs& inputs) const override {
    if (!inputs.left.empty()) return {inputs.left.begin(), inputs.left.end()};
    require(!members_.empty(), "sampler", "class_balanced needs classes, which were not set");
    const auto samples = static_cast<std::size_t>(inputs.samples), classes = members_.size();
    std::vector<std::int64_t> order(samples);
    for (std::size_t c = 0; c < classes; ++c) {
      // The classes that give the extra sample, if counts cannot be equal, change with the epoch.
      const std::size_t turn =
          (c + static_cast<std::size_t>(inputs.epoch) * (samples % classes)) % classes;
      std::vector<std::int64_t> members = members_[turn];
      for (std::size_t p = c, k = 0; p < samples; p += classes, ++k) {
        const std::size_t place = k % members.size();
        if (place == 0 && inputs.shuffle) mix(inputs, k / members.size(), members);
        order[p] = members[place];
      }
    }
    if (!inputs.shuffle) return order;
    // Shuffled, since with a cyclic order a rank might always get the same classes.
    const std::vector<std::int64_t> places =
        random_permutation(inputs.seed, RandomStream::kPermutation,
                           static_cast<std::uint32_t>(inputs.epoch), inputs.samples);
    std::vector<std::int64_t> mixed(samples);
    for (std::size_t i = 0; i < samples; ++i) mixed[i] = order[static_cast<std::size_t>(places[i])];
    return mixed;
  }

 private:
  /// Reshuffles a class's samples each time that all have been used.
  static void mix(const EpochInputs& inputs, std::size_t time, std::vector<std::int64_t>& members) {
    std::vector<std::pair<std::uint64_t, std::int64_t>> keys;
    keys.reserve(members.size());
    for (const std::int64_t sample : members) {
      const Philox4x32 bits =
          random_bits(inputs.seed, RandomStream::kSampler, static_cast<std::uint32_t>(inputs.epoch),
                      std::uint64_t{time} << 40 | static_cast<std::uint64_t>(sample));
      keys.emplace_back(std::uint64_t{bits.v[0]} << 32 | bits.v[1], sample);
    }
    std::sort(keys.begin(), keys.end());
    for (std::size_t i = 0; i < keys.size(); ++i) members[i] = keys[i].second;
  }

  std::vector<std::vector<std::int64_t>> members_;  ///< of each class that has any
};

}  // namespace

void register_class_balanced_sampler(SamplerRegistry& registry) {
  registry.add(
      "class_balanced", [](ConfigSection&) { return std::make_unique<ClassBalancedSampler>(); },
      "draws each class equally often, so samples of small classes repeat");
}

}  // namespace starling
