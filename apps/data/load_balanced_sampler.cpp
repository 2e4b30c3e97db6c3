// Balances the ranks' work if samples differ in cost, after Bagua's LoadBalancingDistributedSampler
// (Gan et al., "BAGUA: scaling up distributed learning with system relaxations", VLDB 2021):
// samples of similar cost go to different ranks at the same time. Bagua assigns a chunk's samples
// by rank, so that the last rank always has the costliest; here the rank with the least work so far
// gets it.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "apps/data/builtin.h"
#include "apps/data/sampler.h"
#include "core/error.h"
#include "core/random.h"

namespace starling {
namespace {

/// An offset to numbers that no permutation uses in the same stream.
constexpr std::uint64_t kPerturbation = std::uint64_t{1} << 40;

/// Splits samples, sorted by cost, into chunks of one sample per rank; a chunk's costliest sample
/// goes to the rank with the least work. Then the work of two ranks in a batch differs by at most
/// the largest cost difference within a chunk: if a rank with less work gets x and one with d more
/// gets y <= x, the difference becomes d - (x - y), which is between -(x - y) and d.
class LoadBalancedSampler final : public Sampler {
 public:
  LoadBalancedSampler(Complexity source, double random_level)
      : source_(source), random_level_(random_level) {}

  bool takes_rest() const override { return true; }
  Complexity complexity() const override { return source_; }
  void set_complexities(const std::vector<float>& complexities) override { cost_ = complexities; }

  std::vector<std::int64_t> epoch(const EpochInputs& inputs) const override {
    require(cost_.size() == static_cast<std::size_t>(inputs.samples), "sampler",
            "{} complexities of {} samples", cost_.size(), inputs.samples);
    const auto ranks = static_cast<std::size_t>(inputs.ranks);
    const std::vector<std::int64_t> sorted = by_cost(inputs);
    const auto chunks = static_cast<std::int64_t>(sorted.size() / ranks);
    std::vector<std::int64_t> order;
    if (inputs.shuffle) {
      order = random_permutation(inputs.seed, RandomStream::kSampler,
                                 static_cast<std::uint32_t>(inputs.epoch), chunks);
    } else {
      order.resize(static_cast<std::size_t>(chunks));
      std::iota(order.begin(), order.end(), std::int64_t{0});
    }

    std::vector<std::int64_t> own, chunk(ranks);
    own.reserve(order.size());
    std::vector<double> in_batch(ranks), in_epoch(ranks);  // cost of each rank's samples so far
    std::vector<std::size_t> takers(ranks);
    std::iota(takers.begin(), takers.end(), std::size_t{0});
    for (std::size_t k = 0; k < order.size(); ++k) {
      if (k % static_cast<std::size_t>(inputs.batch_size) == 0) in_batch.assign(ranks, 0.0);
      std::copy_n(sorted.begin() + order[k] * static_cast<std::int64_t>(ranks), ranks,
                  chunk.begin());
      std::stable_sort(chunk.begin(), chunk.end(),
                       [&](std::int64_t a, std::int64_t b) { return cost(a) > cost(b); });
      // Those with the least work in this batch come first; of equal ones, in this epoch
      std::sort(takers.begin(), takers.end(), [&](std::size_t a, std::size_t b) {
        return std::tuple(in_batch[a], in_epoch[a], a) < std::tuple(in_batch[b], in_epoch[b], b);
      });
      for (std::size_t i = 0; i < ranks; ++i) {
        in_batch[takers[i]] += cost(chunk[i]);
        in_epoch[takers[i]] += cost(chunk[i]);
        if (takers[i] == static_cast<std::size_t>(inputs.rank)) own.push_back(chunk[i]);
      }
    }
    return own;
  }

 private:
  double cost(std::int64_t sample) const {
    return static_cast<double>(cost_[static_cast<std::size_t>(sample)]);
  }

  /// The samples that the default order would use in this epoch's full batches, sorted by perturbed
  /// cost; ties in the epoch's order.
  std::vector<std::int64_t> by_cost(const EpochInputs& inputs) const {
    std::vector<std::int64_t> order = epoch_order(inputs);
    const auto samples = std::ssize(order);
    order.resize(static_cast<std::size_t>(samples / inputs.ranks / inputs.batch_size *
                                          inputs.batch_size * inputs.ranks));
    const auto [least, most] = std::minmax_element(cost_.begin(), cost_.end());
    const double reach =
        cost_.empty() ? 0.0
                      : random_level_ * (static_cast<double>(*most) - static_cast<double>(*least));
    std::vector<std::pair<double, std::int64_t>> keys;
    keys.reserve(order.size());
    for (const std::int64_t sample : order) {
      double key = cost(sample);
      if (reach > 0.0) {
        const Philox4x32 bits = random_bits(inputs.seed, RandomStream::kSampler,
                                            static_cast<std::uint32_t>(inputs.epoch),
                                            kPerturbation | static_cast<std::uint64_t>(sample));
        key += reach * uniform_double(bits.v[0], bits.v[1]);
      }
      keys.emplace_back(key, sample);
    }
    std::stable_sort(keys.begin(), keys.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < keys.size(); ++i) order[i] = keys[i].second;
    return order;
  }

  Complexity source_;
  double random_level_;
  std::vector<float> cost_;  ///< by training sample
};

}  // namespace

void register_load_balanced_sampler(SamplerRegistry& registry) {
  registry.add(
      "load_balanced",
      [](ConfigSection& section) {
        const bool measured =
            section.choice("complexity", "declared", {"declared", "measured"},
                           "what samples cost: as the data set declares it, or the time that "
                           "reading each one takes, "
                           "measured by the ranks before training and kept in checkpoints") ==
            "measured";
        const double level = section.number("random_level", 0.0, Range::closed(0.0, 1.0),
                                            "noise on the complexities before samples are "
                                            "sorted by them, as a share of their range: more "
                                            "noise varies which samples share a step, but "
                                            "balances the work less; 0: none");
        return std::make_unique<LoadBalancedSampler>(
            measured ? Sampler::Complexity::kMeasured : Sampler::Complexity::kDeclared, level);
      },
      "ranks get samples of about the same cost at the same time");
}

}  // namespace starling
