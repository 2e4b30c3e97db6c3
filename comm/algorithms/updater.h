#pragma once

#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "core/operations/updates.h"
#include "kernels/optimizer.h"

namespace starling {

/// Norms of gradients, summed in fp64 by parameter in traced order, so that the bits of the global
/// norm do not depend on bucket sizes and padding. Never waits for the device: factors are computed
/// on the device, where updates read them.
class GradientNorm {
 public:
  /// `replica`: whose ranks have the other parts of the buckets, and call measure() too; null: none
  GradientNorm(Backend& backend, const std::vector<Bucket>& buckets, Replica* replica = nullptr);

  /// Sums the squares of the gradients in buckets [begin, end), on the current stream.
  void measure(int begin, int end);
  /// Writes {clip factor, skip} (GradientControl) from the last measure() of these buckets.
  /// `scale`: the factor that will be applied to the gradients.
  void control(int begin, int end, double scale, double clip, bool check_finite,
               const Tensor& control);
  const Tensor& totals() const { return totals_; }

 private:
  Backend& backend_;
  const std::vector<Bucket>& buckets_;
  Replica* replica_;
  std::vector<std::int64_t> first_;  ///< per bucket, its first parameter's place in totals_
  Tensor totals_;                    ///< fp64, one per parameter; of a replica one per bucket
};

/// Calls f() with the update stream current, after making it wait for the compute stream.
template <class F>
void on_update_stream(Backend& backend, F&& f) {
  const Event computed = backend.record();
  const StreamScope scope(backend, StreamKind::kUpdate);
  backend.wait(computed);
  f();
}

/// Replaces parts of an update, which by default applies the run's rule to the bucket's parameters
/// with the step's gradient.
struct UpdateWork {
  const OptimizerRule* rule = nullptr;  ///< with its `states`
  std::vector<Tensor> states = {};
  Tensor numbers = {};   ///< updated in place, instead of the parameters
  Tensor gradient = {};  ///< is neither unscaled nor clipped
  /// With `gradient`: used instead of this rank's own, see GradientControl
  Tensor control = {};
  /// Also in steps in which this rank's gradients overflowed, which otherwise only mix. Requires
  /// `gradient`
  bool always = false;
};

/// The fused update of a bucket, on the update stream: mixes, clips, and applies the rule unless
/// the step's gradients overflowed. The host never waits for a norm.
class Updater {
 public:
  /// `gradient_share`: factor on gradients in addition to 1/(loss scale), such as all-reduce's 1/n.
  /// `by_rule` false: all updates set UpdateWork::rule, so nothing is prepared for the run's rule.
  explicit Updater(const AlgorithmSite& site, double gradient_share = 1.0, bool by_rule = true);

  /// Whether the first update needs all gradients: for clipping by the global norm, or to detect an
  /// overflow.
  bool needs_all_gradients() const { return clips_globally() || site_.check_overflow; }
  /// Whether buckets are updated during the backward pass.
  bool in_backward() const { return site_.in_backward && !needs_all_gradients(); }
  /// Computes the norm of all unscaled gradients. Before the updates, if needs_all_gradients().
  void measure_all(const StepInfo& info);
  /// x = rule(c, scale · clip factor · gradient, states), in place or into the bucket's spare
  /// buffer (Bucket::flip()). On the update stream, after the work issued to the compute stream so
  /// far.
  void update(int bucket, const StepInfo& info, const Mix& mix = {}, const UpdateWork& work = {});
  /// x = c only, also after an overflow; of `numbers` instead of the parameters if given.
  void mix(int bucket, const StepInfo& info, const Mix& mix, const Tensor& numbers = {});
  /// Makes the compute stream wait for the updates issued so far, before the next forward pass.
  void join();
  /// {clip factor, skip} of all gradients, after measure_all(); empty without an overflow check.
  Tensor overflow_control() const { return site_.check_overflow ? global_ : Tensor(); }

 private:
  bool clips_globally() const { return site_.clip.norm > 0.0 && !site_.clip.per_bucket; }
  bool clips_buckets() const { return site_.clip.norm > 0.0 && site_.clip.per_bucket; }
  double scale(const StepInfo& info) const { return gradient_share_ / info.loss_scale; }
  /// The control tensor of the bucket's update, computed on the update stream.
  Tensor control_of(int bucket, const StepInfo& info);
  Tensor control_of(int bucket, const StepInfo& info, const UpdateWork& work);
  /// Makes the tables of a rule that measures layers.
  void make_layers();
  /// UpdateArgs::decay for the bucket, or for a state with its own size.
  Tensor decay_of(const Bucket& bucket, std::int64_t elements);
  /// Performs args_ for one run of the bucket.
  void update_run(const BucketRun& run, const UpdateLayers& layers, const StepInfo& info);
  /// Sets GradientRecord. `replica`: whose other ranks have more squares.
  void note_squares(const Tensor& squares, const StepInfo& info, Replica* replica);
  /// Where the update of a run writes its sum of squares, if updates compute them.
  Tensor squares_of(int bucket, std::size_t run, const StepInfo& info);

  AlgorithmSite site_;
  double gradient_share_;
  GradientNorm norm_;
  /// Control numbers, fp64 [2], see GradientControl; empty where not needed
  Tensor global_, of_bucket_;
  /// Control numbers for a gradient that is not clipped any more: with an overflow check
  Tensor skip_;
  bool skip_is_known_ = false;  ///< of this step
  /// Of the update being issued. A member so that its vectors are reused
  UpdateArgs args_;
  /// By bucket and run (one if there are no runs); empty if the rule does not measure layers
  std::vector<std::vector<UpdateLayers>> layers_;
  Tensor no_decay_;                       ///< of states that have their own size
  std::vector<std::string> names_;        ///< "bucket 3", for the timeline
  std::vector<std::int64_t> first_part_;  ///< of each bucket, in `squares_`
  Tensor squares_;                        ///< fp64, one for each part of a bucket
};

}  // namespace starling
