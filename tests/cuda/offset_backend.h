#pragma once

#include <memory>

#include "core/forwarding_backend.h"

namespace starling::tests {

/// Gives every tensor memory that starts 8 bytes past a 16-byte boundary: aligned for its numbers,
/// but not for packs of them.
class OffsetBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    return std::make_shared<Shifted>(*this, inner().allocate(bytes + kOffset), bytes);
  }

 private:
  static constexpr std::size_t kOffset = 8;
  class Shifted final : public Storage {
   public:
    Shifted(Backend& backend, const std::shared_ptr<Storage>& memory, std::size_t bytes)
        : Storage(backend, memory->data() + kOffset, bytes), memory_(memory) {}

   private:
    std::shared_ptr<Storage> memory_;
  };
};

}  // namespace starling::tests
