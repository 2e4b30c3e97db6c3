#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "core/backend.h"
#include "core/operations/updates.h"
#include "core/parameter.h"
#include "kernels/optimizer.h"

namespace starling {

/// A parameter's place in a bucket. Offsets and padded sizes are multiples of 32 elements.
struct BucketSlot {
  Parameter* parameter = nullptr;
  std::int64_t offset = 0, elements = 0;
  std::int64_t decay_entries() const { return (elements + kDecayBlock - 1) / kDecayBlock; }
};

struct BucketLayout {
  std::vector<BucketSlot> slots;  ///< in the traced order in which gradients become ready
  std::int64_t elements = 0;      ///< padded
};

/// Which parameter lies where: agreed by all ranks, then fixed.
struct BucketPlan {
  std::vector<BucketLayout> buckets;
  std::vector<int> bucket_of;  ///< by Parameter::index; -1 for frozen parameters
};

/// Fills buckets in `ready_order` (semantics.md section 1): one closes after the parameter that
/// brings it to bucket_bytes or more. Parameters in `unused` (only with unused_parameters = allow)
/// join the last bucket.
BucketPlan plan_buckets(const std::vector<Parameter*>& ready_order,
                        const std::vector<Parameter*>& unused, DType dtype, double bucket_bytes);
/// Compares order, names, shapes and dtypes of the plan across ranks by digest. On a mismatch every
/// rank throws Error(kUsage) that gives the first differing name on each side, and the ranks.
void agree_on_plan(const BucketPlan& plan, DType dtype, World& world);

/// A tensor that an algorithm keeps beside a bucket from step to step (AlgorithmPlan::states).
struct SyncState {
  std::string name;  ///< checkpoints hold it as "sync.<name>"
  Tensor numbers;    ///< as many as the bucket's elements; or a few, of the whole run
};

/// Parameters that lie side by side in a bucket and belong to one group (AlgorithmSite::groups).
struct BucketRun {
  std::int64_t first = 0, elements = 0;  ///< multiples of 32
  std::size_t group = 0;
  std::int64_t state_first = 0, state_elements = 0;  ///< its part of the optimizer's states
};

/// A slot's part of each of the optimizer's states.
struct StateExtent {
  std::int64_t first = 0, elements = 0;
  /// True: sized as the rule says (OptimizerRule::state_elements), and not a number for each of the
  /// parameter's
  bool own = false;
};

/// Whether a bucket's gradients have memory always, or from their first number to the update that
/// takes them (Bucket::hold_gradients(), drop_gradients()).
enum class GradientMemory : std::uint8_t { kAlways, kPassing };

/// The flat buffers of one bucket.
struct Bucket {
  const BucketLayout* layout = nullptr;
  Tensor parameters;
  Tensor gradients;  ///< empty: between steps, where their memory is kPassing
  GradientMemory gradient_memory = GradientMemory::kAlways;
  /// Buffer that the next update writes, if other ranks read the parameters where they lie;
  /// otherwise empty, and the update is in place
  Tensor spare;
  std::vector<Tensor> states;              ///< one per state of the optimizer's rule
  std::vector<StateExtent> state_extents;  ///< by slot: where its part of each of them lies
  /// The algorithm's, in its order; copies one after another
  std::vector<SyncState> sync;
  Tensor decay;  ///< uint8, one per 32 elements
  /// bf16 or fp16 copy of the parameters, written by the update; empty without low precision
  Tensor low;
  /// All of the bucket, in order; empty: it is of one group, the first
  std::vector<BucketRun> runs;

  /// The tensor that an update writes.
  const Tensor& target() const { return spare ? spare : parameters; }
  /// Makes target() the parameters after an update, and the model's views follow.
  void flip();
  /// Gives the gradients memory where they have none, its padding zero; the model's views follow.
  void hold_gradients();
  /// Gives the memory back where it is kPassing: nothing reads these gradients any more.
  void drop_gradients();
};

/// Allocates the buckets (zeroed, padding included), and makes every parameter's value and grad
/// (and low, where `compute` is bf16 or fp16) a view into them.
std::vector<Bucket> make_buckets(const BucketPlan& plan, Backend& backend, DType dtype, int states,
                                 bool decay_all, DType compute = DType::kFloat32);
/// Allocates the buckets with the states that the rule keeps.
std::vector<Bucket> make_buckets(const BucketPlan& plan, Backend& backend, DType dtype,
                                 const OptimizerRule& rule, bool decay_all,
                                 DType compute = DType::kFloat32,
                                 GradientMemory gradients = GradientMemory::kAlways);
/// What trainers ask for: kPassing where the next bucket may have the memory at once, as the host
/// is through with an update when the call returns.
GradientMemory usual_gradient_memory(const Backend& backend);
/// What an update knows of a parameter, but for its places.
LayerExtent layer_of(const BucketSlot& slot);
LayerExtent layer_of(const Parameter& parameter);
/// Fills in Bucket::runs. `decays`: by group, weight decay applies to all its parameters, whatever
/// their shape.
void set_groups(Backend& backend, std::vector<Bucket>& buckets,
                const std::function<std::size_t(const Parameter&)>& group_of,
                const std::vector<bool>& decays);
/// The layers of a run of the bucket; of all of it where `run` has no elements.
std::vector<LayerExtent> layers_in(const Bucket& bucket, BucketRun run = {});
/// Tables of the layers of a run, for rules that measure layers. `workspace`: of add_matrices,
/// shared by buckets.
UpdateLayers update_layers(Backend& backend, const OptimizerRule& rule, const Bucket& bucket,
                           BucketRun run = {}, const Tensor& workspace = {});

}  // namespace starling
