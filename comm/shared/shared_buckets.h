#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "comm/bucket.h"
#include "core/backend.h"
#include "core/tensor.h"

// Buckets with two buffers in memory that is mapped by the ranks of a host: host or device memory.
namespace starling::detail {

/// A tensor that views part of a block and keeps it alive.
template <class Block>
class BlockStorage final : public Storage {
 public:
  BlockStorage(Backend& backend, std::shared_ptr<Block> block, std::size_t offset,
               std::size_t bytes)
      : Storage(backend, block->data() + offset, bytes), block_(std::move(block)) {}

 private:
  std::shared_ptr<Block> block_;
};

/// Offsets of the buckets' two buffers in a rank's block, after `head` bytes of counters. Equal on
/// all ranks.
struct SharedLayout {
  std::vector<std::array<std::size_t, 2>> offsets;  ///< by bucket
  std::size_t bytes = 0;

  SharedLayout(std::size_t head, const std::vector<Bucket>& buckets) : bytes(head) {
    constexpr std::size_t kPage = 4096;
    const auto whole_pages = [](std::size_t size) { return (size + kPage - 1) / kPage * kPage; };
    for (const Bucket& bucket : buckets) {
      for (std::size_t& offset : offsets.emplace_back()) {
        offset = whole_pages(bytes);
        bytes = offset + bucket.parameters.bytes();
      }
    }
    bytes = whole_pages(bytes);
  }
};

/// The two buffers of a bucket in a rank's block.
template <class Block>
std::array<Tensor, 2> buffers_in(const std::shared_ptr<Block>& block,
                                 const std::array<std::size_t, 2>& offsets, Backend& backend,
                                 const Tensor& like) {
  const auto at = [&](std::size_t offset) {
    return Tensor(std::make_shared<BlockStorage<Block>>(backend, block, offset, like.bytes()), 0,
                  like.shape(), like.dtype());
  };
  return {at(offsets[0]), at(offsets[1])};
}

/// Moves the bucket's parameters to the first buffer; the next update writes the second.
inline void move_into(const std::array<Tensor, 2>& own, Backend& backend, Bucket& bucket) {
  backend.copy(bucket.parameters, own[0]);
  bucket.spare = own[0];
  bucket.flip();
  bucket.spare = own[1];
}

}  // namespace starling::detail
