#pragma once

#include <functional>
#include <string>

#include "core/backend.h"

namespace starling::tests {

/// A tensor with a repeating pattern of numbers from -0.5 to 0.46, cheaper to make than random
/// ones; integers are left as they are.
Tensor patterned(Backend& backend, const Shape& shape, DType dtype);

/// Takes work to time, with what it moves (bound by memory) or computes (bound by arithmetic).
using Timed = std::function<void(const std::string& name, double bytes, double flops,
                                 const std::function<void()>& work)>;

/// Hands on the functions of `scripts/compare functions`, with the same names: forward and
/// backward; those whose names have `only` in them.
void time_functions(Backend& backend, DType dtype, const std::string& only, const Timed& time);

}  // namespace starling::tests
