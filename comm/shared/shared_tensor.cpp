#include "comm/shared/shared_tensor.h"

#include <algorithm>
#include <memory>

#include "comm/shared/shared_buckets.h"

namespace starling {

Tensor share_tensor(MemorySharing& sharing, World& world, const std::vector<int>& ranks,
                    Backend& backend, const Shape& shape, DType dtype, std::string& refusal) {
  const std::size_t bytes =
      std::max<std::size_t>(static_cast<std::size_t>(shape.elements()) * size_of(dtype), 1);
  const SharedBlocks blocks = sharing.share(world, ranks, bytes, MemorySharing::Kind::kOfFirst);
  refusal = blocks.refusal;
  if (!refusal.empty()) return {};
  return Tensor(
      std::make_shared<detail::BlockStorage<SharedBlock>>(backend, blocks.of.front(), 0, bytes), 0,
      shape, dtype);
}

}  // namespace starling
