#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/backend.h"

namespace starling::tests {

using Numbers = std::vector<double>;

/// One operation on one set of shapes: what it takes, how a backend runs it, and what it must give by an independent plain loop.
/// The table drives the comparison with that loop, the gradient check by finite differences, and the comparison of fp32,
/// instruction sets, thread counts and devices with fp64.
struct Operation {
  std::string name;
  std::vector<Shape> inputs;   ///< floating inputs, drawn at random
  std::vector<Shape> outputs;  ///< floating outputs
  /// Fills the outputs. May leave more in `saved` for the backward pass.
  std::function<void(Backend&, const std::vector<Tensor>& in, const std::vector<Tensor>& out, std::vector<Tensor>& saved)> forward;
  /// The plain loop.
  std::function<void(const std::vector<Numbers>& in, std::vector<Numbers>& out)> reference;
  /// From the gradient of output 0 (`dy`) fills those of the inputs. None where the operation has no gradient.
  std::function<void(Backend&, const std::vector<Tensor>& in, const std::vector<Tensor>& out, const std::vector<Tensor>& saved,
                     const Tensor& dy, const std::vector<Tensor>& gradients)>
      backward;
  double tolerance = 1e-5;  ///< of fp32 against fp64, relative to the largest output
};

/// Every operation, over shapes with tails, odd channel counts, strides, padding, dilation and groups.
std::vector<Operation> operation_table();

/// Random numbers in [-1, 1) that fp32 holds exactly; the same for the same seed.
Numbers random_numbers(std::int64_t n, std::uint64_t seed);
/// Numbers as a tensor of `dtype`, and back.
Tensor to_tensor(Backend& backend, const Numbers& numbers, const Shape& shape, DType dtype);
Numbers to_numbers(const Tensor& tensor);

}  // namespace starling::tests
