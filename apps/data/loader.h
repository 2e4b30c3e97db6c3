#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "apps/data/batch_maker.h"
#include "apps/data/sampler.h"
#include "apps/inference/test_views.h"

namespace starling {

class LossShares;

/// How training samples become batches. semantics.md, section 9, defines their order.
struct LoaderSettings {
  std::uint64_t seed = 1;
  bool shuffle = true;
  Augmenters augment;
  SoftTarget soft_target;                  ///< needed if `augment` mixes images
  std::shared_ptr<const Sampler> sampler;  ///< null: `shuffle`. Has its complexities before start()
  double dirichlet_alpha = 0.0;            ///< of data.partition; 0: samples are not partitioned
  std::int64_t batch_size = 1;             ///< of one micro-batch on one rank
  std::int64_t side = 0;  ///< of images, in pixels; 0: as the data set declares them
  int rank = 0, ranks = 1;
  /// Ranks that share a batch of members · batch_size samples, one run of batch_size each, and the
  /// place of this one: those of a replica, which `rank` and `ranks` count as one
  int members = 1, member = 0;
  std::shared_ptr<const LossShares> loss_shares;  ///< needed if targets may be ignored
  /// An epoch (-1: none) that another number of ranks began: `taken` is what they used of it, and
  /// each rank makes rest_batches from what remains.
  std::int64_t continued_epoch = -1, rest_batches = 0;
  std::vector<TakenBatches> taken;
  bool fixed_place = false;  ///< all batches at one device address, so that graphs can read them
  int threads = 1;           ///< for reading and decoding, in addition to the training loop's
};

/// Loads batches ahead of the training loop on a thread of its own. Memory is allocated once and
/// reused. An error on that thread (a bad label, say) is thrown by next(), after the batches before
/// it.
class Loader {
 public:
  Loader(const Dataset& dataset, const LoaderSettings& settings, Backend& backend, DType dtype);
  ~Loader();
  /// floor(floor(samples / ranks) / (members · batch_size)), the same on all ranks.
  std::int64_t batches_per_epoch() const;
  /// Sets the position, counted from 0. Called before the first next(), and on resume.
  void start(std::int64_t epoch, std::int64_t batch);
  /// The next micro-batch, valid until the next call. Continues with the next epoch at an epoch's
  /// end; skip_to_epoch() ends one early.
  const Batch& next() {
    advance();
    return make();
  }
  /// First half of next(): waits for the next micro-batch and sends its samples to the device.
  void advance();
  /// Second half of next(): makes the batch of them, such as by cropping and normalising images.
  /// May be repeated. With fixed_place a graph can capture it, and makes the batch that advance()
  /// last went to.
  const Batch& make();
  /// Starts uploading the following batch, if it has been loaded. To be called after a step's work
  /// has been issued, so that the copy overlaps with it; otherwise advance() uploads.
  void upload_ahead();
  void skip_to_epoch(std::int64_t epoch);
  /// Seconds that advance() waited for a batch to be loaded, since the last call.
  double take_wait_seconds();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Reads this rank's share of the test set, or of the training set as it would be tested: every
/// sample exactly once over all ranks, in order, not augmented. The last batch may be smaller. Test
/// samples that cannot be read (Dataset::left_out()) are skipped.
class EvaluationLoader {
 public:
  /// `views`: how each image is shown, see test_views(); empty: once, unchanged.
  EvaluationLoader(const Dataset& dataset, std::int64_t batch_size, int rank, int ranks,
                   Backend& backend, DType dtype, int threads = 1, std::vector<TestView> views = {},
                   Dataset::Split split = Dataset::Split::kTest);
  /// The next batch in its first view; null at the end, after which it starts over.
  const Batch* next();
  const std::vector<TestView>& views() const { return views_; }  ///< at least one
  std::int64_t left_out() const { return left_out_; }  ///< samples skipped so far by this rank
  /// Indices of the current batch's samples.
  std::span<const std::int64_t> samples() const {
    return {samples_.data() + position_ - count_, static_cast<std::size_t>(count_)};
  }
  /// The current batch in another view, which replaces the one returned before.
  const Batch& shown(std::size_t view);

 private:
  const Dataset& dataset_;
  Dataset::Split split_;
  std::vector<std::int64_t> samples_;  ///< of this rank
  /// The current batch is the `count_` samples before `position_`.
  std::int64_t batch_size_ = 1, position_ = 0, count_ = 0;
  std::int64_t left_out_ = 0;
  std::vector<TestView> views_;
  std::vector<Augmenters> augmenters_;  ///< by view
  std::unique_ptr<BatchMaker> maker_;
  BatchMaker::Slot slot_;
  Batch batch_;
};

}  // namespace starling
