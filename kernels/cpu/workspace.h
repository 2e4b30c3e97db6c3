#pragma once

#include <utility>

#include "kernels/cpu/allocator.h"
#include "kernels/cpu/kernels.h"

namespace starling::cpu {

/// Temporary memory of n values of T.
template <class T>
class Workspace {
 public:
  Workspace(CachingAllocator& allocator, Index n)
      : allocator_(&allocator), block_(allocator.take(static_cast<std::size_t>(n) * sizeof(T))) {}
  ~Workspace() {
    if (block_.data) allocator_->give_back(block_);
  }
  Workspace(Workspace&& from) noexcept
      : allocator_(from.allocator_), block_(std::exchange(from.block_, {})) {}
  Workspace& operator=(Workspace&&) = delete;
  T* data() const { return reinterpret_cast<T*>(block_.data); }

 private:
  CachingAllocator* allocator_;
  CachingAllocator::Block block_;
};

}  // namespace starling::cpu
