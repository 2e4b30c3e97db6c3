#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/config.h"
#include "core/registry.h"

namespace starling {

/// Batches that so many ranks, each of them, have taken of an epoch before others went on with it,
/// in the epoch's order.
struct TakenBatches {
  int ranks = 1;
  std::int64_t batch_size = 1, batches = 0;
  friend bool operator==(const TakenBatches&, const TakenBatches&) = default;
};

/// What the samples of a rank in an epoch follow from; all but `rank` and `share` are equal on all
/// ranks.
struct EpochInputs {
  std::uint64_t seed = 1;
  std::int64_t epoch = 0;
  bool shuffle = true;       ///< data.shuffle
  std::int64_t samples = 0;  ///< of the training set
  std::int64_t batch_size = 1;
  int rank = 0, ranks = 1;
  /// This rank's own samples, with data.partition; empty: all ranks draw from all samples
  std::span<const std::int64_t> share = {};
  /// Samples that other ranks, which began the epoch, have left, in its order; empty: all samples
  std::span<const std::int64_t> left = {};
};

/// Which training samples each rank takes in an epoch, and in which order: `data.sampler`. See
/// semantics.md section 9.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// As errors have it, Registry::whose().
  void set_name(std::string name) { name_ = std::move(name); }
  const std::string& name() const { return name_; }
  /// This rank's samples in the order of its batches: at least as many as fill
  /// floor(floor(samples/ranks)/batch_size) of them, with as many samples as `left` has where that
  /// is not empty. Between ranks and batches no sample comes twice, unless the sampler repeats().
  /// It is a function of its argument and of complexities or classes alone, and any thread may ask.
  virtual std::vector<std::int64_t> epoch(const EpochInputs& inputs) const = 0;
  /// The samples of all ranks in an epoch, in its order, of which some may be left for others.
  virtual std::vector<std::int64_t> order(const EpochInputs& inputs) const;
  /// Whether a sample may come several times in an epoch, and others not at all.
  virtual bool repeats() const { return false; }

  /// Whether it can give out a rank's share of its own (EpochInputs::share).
  virtual bool takes_partition() const { return false; }
  /// Whether it can deal out what is left of an epoch (EpochInputs::left). One that cannot begins
  /// such an epoch's order anew.
  virtual bool takes_rest() const { return false; }

  /// Where the complexity of samples comes from, for one that goes by it: see
  /// agree_on_complexities().
  enum class Complexity : std::uint8_t { kNone, kDeclared, kMeasured };
  virtual Complexity complexity() const { return Complexity::kNone; }
  /// Tells a sampler that goes by complexity one number >= 0 for each training sample, equal on all
  /// ranks. Called before the first epoch().
  virtual void set_complexities(const std::vector<float>& complexities);

  /// Whether it goes by the classes of samples, and these, one for each training sample, equal on
  /// all ranks: before the first epoch().
  virtual bool by_class() const { return false; }
  virtual void set_classes(std::span<const std::int32_t> classes) { (void)classes; }

 private:
  std::string name_;
};

using SamplerRegistry = Registry<std::unique_ptr<Sampler>, ConfigSection&>;
/// Samplers by `data.sampler.type`.
SamplerRegistry& samplers();
void register_builtin_samplers();
/// The one of configs that name none.
std::unique_ptr<Sampler> make_shuffle_sampler();

/// The samples of this epoch in its order, before they are dealt to the ranks: inputs.left, or all,
/// 0 … S-1, by a permutation of (seed, epoch), or as they lie where inputs.shuffle is false.
std::vector<std::int64_t> epoch_order(const EpochInputs& inputs);
/// This rank's of an epoch's samples where ranks take turns: positions rank, rank + ranks, …
std::vector<std::int64_t> dealt_in_turn(std::span<const std::int64_t> order,
                                        const EpochInputs& inputs);
/// Samples that a sampler deals, checked: Error(kUsage) where it has fewer than `needed` samples,
/// one that there is not, or one twice that does not repeat.
std::vector<std::int64_t> dealt(const Sampler& sampler, const EpochInputs& inputs,
                                std::int64_t needed);
/// What is left of an epoch, in its order, once ranks have taken so much of it, one number of ranks
/// after another.
std::vector<std::int64_t> left_of_epoch(const Sampler& sampler, EpochInputs inputs,
                                        std::span<const TakenBatches> taken);

}  // namespace starling
