#pragma once

#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/gradient_norm.h"
#include "core/operations/updates.h"
#include "kernels/optimizer.h"

namespace starling {

/// Calls f() on the update stream, after the work that the compute stream holds too: for operations
/// beside the updates.
template <class F>
void on_update_stream(Backend& backend, F&& f) {
  const Event computed = backend.record();
  const StreamScope scope(backend, StreamKind::kUpdate);
  backend.wait(computed);
  f();
}

/// An update that is not the run's rule on the bucket's parameters and the step's gradient. What is
/// named here takes their places.
struct UpdateWork {
  const OptimizerRule* rule = nullptr;  ///< with `states`
  std::vector<Tensor> states = {};
  Tensor numbers = {};   ///< changed in place, instead of the parameters
  Tensor gradient = {};  ///< made by the algorithm: neither unscaled nor clipped
  /// With a gradient: read instead of what this rank knows of the step, see GradientControl
  Tensor control = {};
  /// True: the work is done also where this rank's gradients overflowed; otherwise the update only
  /// mixes then. Not with the step's own gradient
  bool always = false;
};

/// The fused update of one bucket on the update stream, which algorithms share: with clipping, and
/// without the rule in a step whose gradients overflowed. Norms stay on the device: the host never
/// waits for one.
class Updater {
 public:
  /// `gradient_share` is what gradients are multiplied by beside 1/(loss scale): all-reduce's 1/n.
  /// `by_rule` false: all updates have a rule of their own (UpdateWork::rule), so nothing is kept
  /// for the run's.
  explicit Updater(const AlgorithmSite& site, double gradient_share = 1.0, bool by_rule = true);

  /// Clipping by the norm over all parameters, and looking for an overflow: need every gradient
  /// before the first update.
  bool needs_all_gradients() const { return clips_globally() || site_.check_overflow; }
  /// True where buckets are updated while the backward pass goes on.
  bool in_backward() const { return site_.in_backward && !needs_all_gradients(); }
  /// Measures the norm of the step's gradients, unscaled, before the updates of a step that needs
  /// all gradients.
  void measure_all(const StepInfo& info);
  /// x = rule(c, scale · clip factor · gradient, states), in place or into the bucket's spare
  /// buffer, which the model's views follow. Issued to the update stream, after the work that the
  /// compute stream holds so far.
  void update(int bucket, const StepInfo& info, const Mix& mix = {}, const UpdateWork& work = {});
  /// x = c and nothing else, whatever the step's gradients were; of `numbers` beside the parameters
  /// where they are given.
  void mix(int bucket, const StepInfo& info, const Mix& mix, const Tensor& numbers = {});
  /// The compute stream waits for the updates issued so far: the next forward pass reads the
  /// parameters.
  void join();
  /// {clip factor, skip} of all gradients, after measure_all; empty without an overflow check.
  Tensor overflow_control() const { return site_.check_overflow ? global_ : Tensor(); }

 private:
  bool clips_globally() const { return site_.clip.norm > 0.0 && !site_.clip.per_bucket; }
  bool clips_buckets() const { return site_.clip.norm > 0.0 && site_.clip.per_bucket; }
  double scale(const StepInfo& info) const { return gradient_share_ / info.loss_scale; }
  /// Control numbers that the bucket's update reads; issued to the update stream.
  Tensor control_of(int bucket, const StepInfo& info);
  Tensor control_of(int bucket, const StepInfo& info, const UpdateWork& work);
  /// The tables of the run's rule, where it measures layers.
  void make_layers();
  /// Entries of UpdateArgs::decay for as many numbers as a bucket's, or a state's that has its own
  /// size.
  Tensor decay_of(const Bucket& bucket, std::int64_t elements);
  /// Does what args_ says, for one group's part of the bucket.
  void update_run(const BucketRun& run, const UpdateLayers& layers, const StepInfo& info);
  /// Notes where the sums of squares of this step's gradients are.
  void note_squares(const Tensor& squares, const StepInfo& info);
  /// The place for those of a bucket's part, where updates are to make them.
  Tensor squares_of(int bucket, std::size_t run, const StepInfo& info);

  AlgorithmSite site_;
  double gradient_share_;
  GradientNorm norm_;
  /// Control numbers, fp64 [2], see GradientControl; empty where not needed
  Tensor global_, of_bucket_;
  /// Control numbers for a gradient that is not clipped any more: with an overflow check
  Tensor skip_;
  bool skip_is_known_ = false;  ///< of this step
  /// Of the update being issued; kept for its vectors' memory
  UpdateArgs args_;
  /// Tables by bucket and run (one where it has none); empty where the rule measures none
  std::vector<std::vector<UpdateLayers>> layers_;
  Tensor no_decay_;                       ///< of states that have their own size
  std::vector<std::string> names_;        ///< "bucket 3", for the timeline
  std::vector<std::int64_t> first_part_;  ///< of each bucket, in `squares_`
  Tensor squares_;                        ///< fp64, one for each part of a bucket
};

}  // namespace starling
