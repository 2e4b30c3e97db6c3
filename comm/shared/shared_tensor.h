#pragma once

#include <string>
#include <vector>

#include "comm/shared/memory_sharing.h"
#include "core/tensor.h"

namespace starling {

/// A zeroed tensor in memory that the given ranks of a host (ascending, including this one) share
/// and all write. Empty if memory cannot be shared, with the reason in `refusal`; the same on all
/// ranks of the world. Collective over that.
Tensor share_tensor(MemorySharing& sharing, World& world, const std::vector<int>& ranks,
                    Backend& backend, const Shape& shape, DType dtype, std::string& refusal);
/// Whether a tensor is such a one or a view of it. Its memory outlives the backend.
bool is_shared(const Tensor& tensor);

}  // namespace starling
