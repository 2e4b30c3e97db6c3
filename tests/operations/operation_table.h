#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/backend.h"

namespace starling::tests {

using Numbers = std::vector<double>;

/// Roles of tensors, which decide their dtype where activations are bf16 or fp16
/// (core/operations, "Low precision"). In fp32 and fp64 all are alike.
enum class Role : std::uint8_t {
  kActivation,  ///< of the low precision, as is its gradient
  kWeight,      ///< of the low precision, its gradient fp32
  kParameter,   ///< fp32, as is its gradient: biases, gamma, beta, statistics, losses
  /// fp64 whatever activations are: totals, what controls an update. No gradient from here on
  kExact,
  kIndex,    ///< int32: labels, offsets
  kByte,     ///< uint8: pixels, flags
  kCounter,  ///< int64
};
inline bool is_integer(Role role) { return role >= Role::kIndex; }

/// One operation on one set of shapes: what it takes, how a backend runs it, and what it must give
/// by an independent plain loop. The table drives the comparison with that loop, the gradient check
/// by finite differences, and the comparison of fp32, instruction sets, thread counts and devices
/// with fp64; and, in larger shapes, the timing of `test_operations speed`.
struct Operation {
  std::string name;
  std::vector<Shape> inputs, outputs;
  std::vector<Role> input_roles, output_roles;  ///< those left out are activations
  /// Of integer inputs, by input: drawn from 0 … bound - 1
  std::vector<std::int64_t> bounds;
  /// Makes what was drawn at random valid (a variance positive); most need none
  std::function<void(std::vector<Numbers>&)> fit;
  /// Fills the outputs. May leave more in `saved` for the backward pass, and makes that at the
  /// first call alone.
  std::function<void(Backend&, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                     std::vector<Tensor>& saved)>
      forward;
  /// The plain loop.
  std::function<void(const std::vector<Numbers>& in, std::vector<Numbers>& out)> reference;
  /// Fills the gradients of the inputs from that of output 0 (`dy`). None where the operation has
  /// no gradient.
  std::function<void(Backend&, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                     const std::vector<Tensor>& saved, const Tensor& dy,
                     const std::vector<Tensor>& gradients)>
      backward;
  double tolerance = 1e-5;  ///< of fp32 against fp64, relative to the largest output
  /// Roundings of low-precision numbers that its results carry on, beside their own
  double carried = 0.0;
  /// Bytes of each pass: what it moves and computes is the sum over its operations (Accesses), but
  /// where it is said here.
  double forward_bytes = 0.0;  ///< in place of that sum
  bool aligned = false;        ///< takes only tensors that begin at a multiple of 16 bytes
  bool exact = false;          ///< the forward pass has the same bits on every backend
  /// Numbers, of inputs and then outputs, of those whose type or dimensions may be others, or that
  /// are not looked at
  std::set<std::size_t> loose;
  double backward_again = 0.0;  ///< elements of activations that the backward pass reads once more

  Role input_role(std::size_t i) const {
    return i < input_roles.size() ? input_roles[i] : Role::kActivation;
  }
  Role output_role(std::size_t i) const {
    return i < output_roles.size() ? output_roles[i] : Role::kActivation;
  }
  bool differentiable(std::size_t i) const { return input_role(i) < Role::kExact; }
  /// The dtypes of its tensors where activations have `dtype`.
  DType input_dtype(std::size_t i, DType dtype) const;
  DType output_dtype(std::size_t i, DType dtype) const;
  DType gradient_dtype(std::size_t i, DType dtype) const;
};

/// Every operation of core/operations, over shapes with tails, odd channel counts, strides,
/// padding, dilation and groups.
std::vector<Operation> operation_table();
/// The same operations at the shapes of ResNet-20 and a few layers more, for samples of `batch`:
/// large enough to be timed. Those of a few numbers alone are left out.
std::vector<Operation> timing_table(std::int64_t batch);

/// The dtype of statistics, biases and gradients of parameters beside activations of `dtype`.
inline DType parameter_dtype(DType dtype) {
  return is_low_precision(dtype) ? DType::kFloat32 : dtype;
}

struct Results {
  std::vector<Numbers> outputs, gradients;  ///< a gradient is empty where its input has none
  bool spilled = false;                     ///< numbers around a tensor have changed
  /// Calls of operations that were not as in the plain way
  int varied = 0;
};
/// How a row is run.
struct Way {
  /// 0: every tensor fills its memory. 1: each begins an element behind the start of memory, with
  /// numbers before and after it that must stay as they are. 2: the same, each at another place.
  int place = 0;
  bool accumulate = false;  ///< operations that can add to their results do, to 0.5
  /// Operations let a result lie over an input: the first, second, … of the inputs over which it
  /// may lie
  int over = -1;
  /// This one of inputs, outputs, gradients and the seed is not what belongs there
  int wrong = -1;
  /// What is wrong with it: its first or last dimension is 1 more, or its type is another
  enum class Wrong : std::uint8_t { kFirst, kLast, kType } kind = Wrong::kFirst;
};
/// The ways beside the plain one to add up, and to lie over inputs, that this row's operations
/// have.
std::vector<Way> ways_of(const Operation& op);
/// Inputs drawn at random, the same at every call, and a seed for the gradient of output 0; rounded
/// so that `dtype` holds them exactly.
std::vector<Numbers> random_inputs(const Operation& op, DType dtype = DType::kFloat32);
Numbers random_seed(const Operation& op, DType dtype = DType::kFloat32);
/// Inputs with NaN and infinities among the activations.
std::vector<Numbers> special_inputs(const Operation& op, DType dtype);
/// Runs it forward and, where it has a gradient, backward, with activations of `dtype`.
Results run(const Operation& op, Backend& backend, DType dtype, const std::vector<Numbers>& inputs,
            const Numbers& seed, const Way& way = {});
/// The tensors that a backend takes though they are not what belongs there, one a line: those of
/// another type, and those that may have one more in either dimension. In low precision only those
/// of parameters.
std::string taken_wrongly(const Operation& op, Backend& backend, DType dtype);

/// Empty where its gradients in fp64 equal finite differences, otherwise the first that does not.
std::string wrong_slopes(const Operation& op, Backend& backend);

/// Largest difference relative to the largest finite number of b (or to 0.01, so that zeros
/// compare). A difference in size, and NaN or an infinity on one side, count as 1e300.
double distance(const Numbers& a, const Numbers& b);
/// How far a tensor of `type` may lie from the fp64 result where activations have `dtype`:
/// op.tolerance, and the roundings of bf16 or fp16.
double tolerance(const Operation& op, DType dtype, DType type);
/// Empty where `found` (activations of `dtype`) agrees with the fp64 results, otherwise what is
/// furthest off.
std::string difference(const Operation& op, DType dtype, const Results& found,
                       const Results& expected);

/// Work of the two passes: what they move and compute with activations of `dtype`, from shapes
/// alone.
struct Work {
  double bytes = 0.0, flops = 0.0;
};
struct PassWork {
  Work forward, backward;
};
PassWork work_of(const Operation& op, DType dtype);
/// The names of the operations that a row calls.
std::set<std::string> names_in(const Operation& op);

/// Random numbers in [-1, 1) that fp32 holds exactly; the same for the same seed.
Numbers random_numbers(std::int64_t n, std::uint64_t seed);
/// Numbers as a tensor of `dtype`, `offset` elements into memory that ends behind it, or after some
/// more where there is an offset; and back.
Tensor to_tensor(Backend& backend, const Numbers& numbers, const Shape& shape, DType dtype,
                 std::int64_t offset = 0);
Numbers to_numbers(const Tensor& tensor);

}  // namespace starling::tests
