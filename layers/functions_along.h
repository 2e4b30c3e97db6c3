#pragma once

#include <string_view>

#include "core/tensor.h"

namespace starling::functions {

/// A tensor as [outer, dimension d, inner].
Tensor around(const Tensor& x, int d);
/// Error(kUsage), which begins with the name, where an index is not int32.
void check_index(std::string_view name, const Tensor& index);

}  // namespace starling::functions
