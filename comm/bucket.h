#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "core/backend.h"
#include "core/operations/updates.h"
#include "core/parameter.h"
#include "kernels/optimizer.h"

namespace starling {

/// A parameter's position in a bucket. Offsets and padded sizes are multiples of 32 elements.
struct BucketSlot {
  Parameter* parameter = nullptr;
  std::int64_t offset = 0, elements = 0;
  std::int64_t decay_entries() const { return (elements + kDecayBlock - 1) / kDecayBlock; }
};

struct BucketLayout {
  std::vector<BucketSlot> slots;  ///< in the traced order in which gradients become ready
  std::int64_t elements = 0;      ///< padded
  /// Where the parts of a replica's ranks begin, and the end (split_buckets()); empty: one rank has
  /// all
  std::vector<std::int64_t> parts = {};
};

/// The assignment of parameters to buckets: the same on all ranks, and fixed for a run.
struct BucketPlan {
  std::vector<BucketLayout> buckets;
  std::vector<int> bucket_of;  ///< by Parameter::index; -1 for frozen parameters
};

/// Fills buckets in `ready_order` (semantics.md section 1); a bucket is full once it has at least
/// bucket_bytes. Parameters in `unused` (only with unused_parameters = allow) go to the last
/// bucket.
BucketPlan plan_buckets(const std::vector<Parameter*>& ready_order,
                        const std::vector<Parameter*>& unused, DType dtype, double bucket_bytes);
/// Divides each bucket into as many parts as a replica has ranks, none of them empty; the buckets
/// grow by padding. Parts begin at multiples of `block` (of 32); with `whole` where a parameter
/// begins, for rules and codes that see whole parameters, and are as equal as that allows.
void split_buckets(BucketPlan& plan, int parts, std::int64_t block, bool whole);
/// Compares order, names, shapes and dtypes between ranks. On a mismatch every rank throws
/// Error(kUsage) with the first differing names and their ranks.
void agree_on_plan(const BucketPlan& plan, DType dtype, World& world);

struct ElementRange {
  std::int64_t first = 0, elements = 0;
};

/// A state tensor of the algorithm for one bucket (AlgorithmPlan::states).
struct SyncState {
  std::string name;  ///< "sync.<name>" in checkpoints
  Tensor numbers;    ///< one per element of the bucket, or KeptState::numbers of them
};

/// Adjacent parameters of a bucket that belong to the same group (AlgorithmSite::groups).
struct BucketRun {
  std::int64_t first = 0, elements = 0;  ///< multiples of 32
  std::size_t group = 0;
  std::int64_t state_first = 0, state_elements = 0;  ///< range in the optimizer's states
};

/// A slot's range in each of the optimizer's states.
struct StateExtent {
  std::int64_t first = 0, elements = 0;
  /// The size is OptimizerRule::state_elements(), not the parameter's
  bool own = false;
};

/// Whether a bucket's gradients always have memory, or only from their first use in the backward
/// pass to the update (Bucket::hold_gradients(), drop_gradients()).
enum class GradientMemory : std::uint8_t { kAlways, kPassing };

/// Adjacent vectors of a bucket, those of its parameters that are no matrices.
struct VectorRange {
  std::int64_t first = 0, elements = 0;  ///< multiples of 32
  std::int64_t place = 0;                ///< in Bucket::vectors, where they follow one another
};
std::vector<VectorRange> vectors_of(const BucketLayout& layout);

/// The flat buffers of one bucket.
struct Bucket {
  const BucketLayout* layout = nullptr;
  Tensor parameters;
  Tensor gradients;  ///< with kPassing empty between steps
  GradientMemory gradient_memory = GradientMemory::kAlways;
  /// A second buffer that the next update writes, if other ranks read the parameters in shared
  /// memory; otherwise empty, and updates are in place
  Tensor spare;
  std::vector<Tensor> states;              ///< one per state of the optimizer's rule
  std::vector<StateExtent> state_extents;  ///< by slot: its range in each of them
  /// The algorithm's states in its plan's order, copies of a state adjacent
  std::vector<SyncState> sync;
  Tensor decay;  ///< uint8, one per 32 elements
  /// bf16 or fp16 copy of the parameters, written by the update; empty without low precision
  Tensor low;
  /// The numbers that layers compute with lie in `low`, and `parameters` has memory for the part
  /// that this rank updates alone. Values of matrices are empty
  bool divided = false;
  Tensor vectors;  ///< then: those of vectors, which layers take in full precision
  /// A partition of the bucket, in order; empty: all of it is in the first group
  std::vector<BucketRun> runs;
  /// The part that this rank updates, if its replica has several ranks; empty: all of it
  std::optional<ElementRange> own;
  /// Allocates the gradients instead of the backend, if set
  std::function<Tensor(const Shape&, DType)> gradient_place;

  /// This rank's part of a tensor of the bucket's size.
  Tensor own_part(const Tensor& whole) const {
    return own ? whole.slice(own->first, Shape{own->elements}) : whole;
  }

  /// The tensor that an update writes.
  const Tensor& target() const { return spare ? spare : parameters; }
  /// After an update: swaps parameters and spare, and redirects the model's views.
  void flip();
  /// Allocates the gradients if necessary, with zero padding, and redirects the model's views.
  void hold_gradients();
  /// Frees the gradients if they are kPassing.
  void drop_gradients();
};

/// Makes values and low-precision copies of the bucket's parameters views into tensors like the
/// bucket's own.
void view_numbers(const Bucket& bucket, const Tensor& parameters, const Tensor& low,
                  const Tensor& vectors);

/// Finds memory that has a bucket's numbers already, those that checkpoints name
/// "PREFIX.PARAMETER", as they lie in a bucket; empty: there is none.
using FindNumbers = std::function<Tensor(const Bucket& bucket, const std::string& prefix,
                                         std::int64_t elements, DType dtype)>;

/// Allocates zeroed buckets, and makes every parameter's value, grad and, if `compute` is bf16 or
/// fp16, low a view into them.
std::vector<Bucket> make_buckets(const BucketPlan& plan, Backend& backend, DType dtype, int states,
                                 bool decay_all, DType compute = DType::kFloat32);
class Replica;
/// The same, with the optimizer rule's states. `replica`: has memory for parameters, their
/// low-precision copies and states, of which this rank uses its part; null: one rank has all. Where
/// its ranks share no memory, and compute in low precision, buckets are divided. What `find` finds
/// is taken in place of new parameters and states.
std::vector<Bucket> make_buckets(const BucketPlan& plan, Backend& backend, DType dtype,
                                 const OptimizerRule& rule, bool decay_all,
                                 DType compute = DType::kFloat32,
                                 GradientMemory gradients = GradientMemory::kAlways,
                                 Replica* replica = nullptr, const FindNumbers& find = {});
/// This rank's part of one of the bucket's states.
Tensor own_states(const Bucket& bucket, const Tensor& state);
/// Where the states of the bucket's element `at` lie, which begins a parameter if those have sizes
/// of their own.
std::int64_t state_place(const Bucket& bucket, std::int64_t at);
/// kPassing on devices that execute synchronously, since there the next bucket can reuse the memory
/// as soon as the update's call has returned.
GradientMemory usual_gradient_memory(const Backend& backend);
/// Describes a parameter for an update, without its offsets.
LayerExtent layer_of(const BucketSlot& slot);
LayerExtent layer_of(const Parameter& parameter);
/// Sets Bucket::runs. `decays`: by group, whether weight decay applies to parameters of all shapes.
void set_groups(Backend& backend, std::vector<Bucket>& buckets,
                const std::function<std::size_t(const Parameter&)>& group_of,
                const std::vector<bool>& decays);
/// The layers of a run of the bucket; of the whole bucket if `run` is empty.
std::vector<LayerExtent> layers_in(const Bucket& bucket, BucketRun run = {});
/// Tables of the layers of a run, for rules that measure layers. `workspace`: of add_matrices,
/// shared by buckets.
UpdateLayers update_layers(Backend& backend, const OptimizerRule& rule, const Bucket& bucket,
                           BucketRun run = {}, const Tensor& workspace = {});

}  // namespace starling
