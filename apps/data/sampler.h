#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/config.h"
#include "core/registry.h"

namespace starling {

/// The number of batches of an epoch that each of `ranks` ranks used before a different number of
/// ranks continued it.
struct TakenBatches {
  int ranks = 1;
  std::int64_t batch_size = 1, batches = 0;
  friend bool operator==(const TakenBatches&, const TakenBatches&) = default;
};

/// What determines a rank's samples in an epoch. All but `rank` and `share` are equal on all ranks.
struct EpochInputs {
  std::uint64_t seed = 1;
  std::int64_t epoch = 0;
  bool shuffle = true;       ///< data.shuffle
  std::int64_t samples = 0;  ///< of the training set
  std::int64_t batch_size = 1;
  int rank = 0, ranks = 1;
  /// This rank's part of the samples, with data.partition; empty: ranks share all samples
  std::span<const std::int64_t> share = {};
  /// In a continued epoch: its remaining samples in order; empty: all samples
  std::span<const std::int64_t> left = {};
};

/// Which training samples each rank takes in an epoch, and in which order: `data.sampler`. See
/// semantics.md section 9.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// For errors, Registry::whose().
  void set_name(std::string name) { name_ = std::move(name); }
  const std::string& name() const { return name_; }
  /// This rank's samples in order: at least enough for floor(floor(samples/ranks)/batch_size)
  /// batches, where samples is the number in `left` if that is not empty. No sample occurs twice,
  /// on any rank, unless the sampler repeats(). Depends on its argument and on complexities or
  /// classes only. Thread-safe.
  virtual std::vector<std::int64_t> epoch(const EpochInputs& inputs) const = 0;
  /// The samples of all ranks in an epoch, in order; its rest may be continued by other ranks.
  virtual std::vector<std::int64_t> order(const EpochInputs& inputs) const;
  /// Whether a sample may occur several times in an epoch, and others not at all.
  virtual bool repeats() const { return false; }

  /// Whether it supports EpochInputs::share.
  virtual bool takes_partition() const { return false; }
  /// Whether it supports EpochInputs::left. Otherwise a continued epoch starts over.
  virtual bool takes_rest() const { return false; }

  /// Where it gets the complexity of samples from, if it needs it: see agree_on_complexities().
  enum class Complexity : std::uint8_t { kNone, kDeclared, kMeasured };
  virtual Complexity complexity() const { return Complexity::kNone; }
  /// Sets the complexities, one number >= 0 for each training sample, equal on all ranks. Called
  /// before the first epoch() if needed.
  virtual void set_complexities(const std::vector<float>& complexities);

  /// Whether it needs the classes of samples. They are set before the first epoch(), one for each
  /// training sample, equal on all ranks.
  virtual bool by_class() const { return false; }
  virtual void set_classes(std::span<const std::int32_t> classes) { (void)classes; }

 private:
  std::string name_;
};

using SamplerRegistry = Registry<std::unique_ptr<Sampler>, ConfigSection&>;
/// Samplers by `data.sampler.type`.
SamplerRegistry& samplers();
void register_builtin_samplers();
/// The default sampler.
std::unique_ptr<Sampler> make_shuffle_sampler();

/// The order of an epoch's samples over all ranks: inputs.left, or all, 0 … S-1, permuted by (seed,
/// epoch), or in ascending order if inputs.shuffle is false.
std::vector<std::int64_t> epoch_order(const EpochInputs& inputs);
/// This rank's samples at positions rank, rank + ranks, … of an epoch's order.
std::vector<std::int64_t> dealt_in_turn(std::span<const std::int64_t> order,
                                        const EpochInputs& inputs);
/// Sampler::epoch() with checks: Error(kUsage) for fewer than `needed` samples, an invalid one, or
/// a duplicate unless the sampler repeats().
std::vector<std::int64_t> dealt(const Sampler& sampler, const EpochInputs& inputs,
                                std::int64_t needed);
/// The rest of an epoch's samples in order, after `taken` by one number of ranks after another.
std::vector<std::int64_t> left_of_epoch(const Sampler& sampler, EpochInputs inputs,
                                        std::span<const TakenBatches> taken);

}  // namespace starling
