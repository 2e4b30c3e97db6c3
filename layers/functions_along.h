#pragma once

#include <string_view>

#include "core/tensor.h"

namespace starling::functions {

/// A tensor viewed as [outer, dimension d, inner].
Tensor around(const Tensor& x, int d);
/// Error(kUsage), starting with `name`, if the index is not int32.
void check_index(std::string_view name, const Tensor& index);

}  // namespace starling::functions
