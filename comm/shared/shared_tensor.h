#pragma once

#include <string>
#include <vector>

#include "comm/shared/memory_sharing.h"
#include "core/tensor.h"

namespace starling {

/// A zeroed tensor in memory that ranks of a host have in common and all of them write: `ranks`,
/// ascending, with this one. Empty where memory cannot be shared, with why in `refusal`; the same
/// on all ranks of the world. Collective over that.
Tensor share_tensor(MemorySharing& sharing, World& world, const std::vector<int>& ranks,
                    Backend& backend, const Shape& shape, DType dtype, std::string& refusal);
/// Whether a tensor is, or is a part of one. Its numbers outlive the backend.
bool is_shared(const Tensor& tensor);

}  // namespace starling
