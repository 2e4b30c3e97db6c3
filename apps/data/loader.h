#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/data/augment.h"
#include "apps/data/dataset.h"
#include "apps/data/sampler.h"
#include "apps/inference/test_views.h"
#include "core/backend.h"

namespace starling {

class LossShares;

/// Class numbers that mixed batches hold shares of each class for instead, since an image is of two
/// classes then.
struct SoftTarget {
  std::string tensor;        ///< a scalar int32 of each sample; empty: there are none
  std::int64_t classes = 0;  ///< fp32 [classes] takes its place
};

/// How training samples become batches; their order is that of semantics.md section 9.
struct LoaderSettings {
  std::uint64_t seed = 1;
  bool shuffle = true;
  Augmenters augment;
  SoftTarget soft_target;  ///< needed where `augment` mixes images
  /// null: `shuffle`. Knows the complexities before start()
  std::shared_ptr<const Sampler> sampler;
  double dirichlet_alpha = 0.0;  ///< > 0: `data.partition` dirichlet
  std::int64_t batch_size = 1;   ///< of one micro-batch on one rank
  /// Of images, in pixels; 0: as the data set declares them
  std::int64_t side = 0;
  int rank = 0, ranks = 1;
  std::shared_ptr<const LossShares> loss_shares;  ///< needed where targets are ignored
  /// Other ranks began this epoch, and took so much of it; each rank makes so many batches of the
  /// rest. By default none.
  std::int64_t continued_epoch = -1, rest_batches = 0;
  std::vector<TakenBatches> taken;
  bool fixed_place = false;  ///< a device makes all batches in one place, so that a graph can
  int threads = 1;           ///< that read and decode samples, beside the training loop's
};

/// Prepares batches on its own thread, some ahead of the training loop. Memory for batches is taken
/// once and reused. An error on the thread (a bad label, say) is thrown by the next call of next().
class Loader {
 public:
  Loader(const Dataset& dataset, const LoaderSettings& settings, Backend& backend, DType dtype);
  ~Loader();
  /// floor(floor(S/n) / batch_size), the same on all ranks; of a continued one its rest
  std::int64_t batches_per_epoch() const;
  /// Starts at a micro-batch of an epoch (0-based); called before the first next() and on resume.
  void start(std::int64_t epoch, std::int64_t batch);
  /// The next micro-batch; goes on with the following epoch by itself. `micro_batches_used` of an
  /// epoch is decided by the caller: skip_to_epoch() leaves the rest of an epoch out. The batch
  /// stays valid until the next call.
  const Batch& next() {
    advance();
    return make();
  }
  /// The first half of next(): goes on to the next micro-batch, and leaves the rest to make(), such
  /// as to crop, flip and normalise images.
  void advance();
  /// The second half; again, as often as it is called. With a fixed place this may be captured, and
  /// a graph then makes whichever micro-batch advance() has gone on to.
  const Batch& make();
  /// Begins to copy the batch after this one to the device, if it is ready: called once a step's
  /// work has been issued, so that the copy runs while the device computes. Where it is not called,
  /// next() copies.
  void upload_ahead();
  void skip_to_epoch(std::int64_t epoch);
  /// Seconds that advance() has waited for a batch to be ready, since the last call.
  double take_wait_seconds();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// This rank's share of the test set, or of the training set as it would be tested: every sample
/// exactly once over all ranks, in order, no augmentation; the last batch may be short. Test
/// samples that the data set leaves out (Dataset::left_out) are none, from when they are met on.
class EvaluationLoader {
 public:
  /// `views`: how each image is shown, of test_views(); none: as it is.
  EvaluationLoader(const Dataset& dataset, std::int64_t batch_size, int rank, int ranks,
                   Backend& backend, DType dtype, int threads = 1, std::vector<TestView> views = {},
                   Dataset::Split split = Dataset::Split::kTest);
  ~EvaluationLoader();
  /// The next batch, in its first view, or null at the end (then it starts over).
  const Batch* next();
  const std::vector<TestView>& views() const;     ///< one or more
  std::int64_t left_out() const;                  ///< of this rank's share, so far
  std::span<const std::int64_t> samples() const;  ///< numbers of the last batch's samples
  /// The same samples in another view; takes the place of the batch that was given before.
  const Batch& shown(std::size_t view);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Which samples the loader takes in an epoch, in order, without data.partition: with `shuffle`
/// positions i, i+n, … of the epoch's permutation for rank i, floor(S/n) of them.
std::vector<std::int64_t> epoch_samples(std::int64_t samples, const LoaderSettings& settings,
                                        std::int64_t epoch);

}  // namespace starling
