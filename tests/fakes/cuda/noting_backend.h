#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "core/forwarding_backend.h"
#include "core/operations/accesses.h"
#include "core/peer_memory.h"
#include "kernels/cuda/cuda_backend.h"

namespace starling::cuda::shim {

/// Hands every call on to a CudaBackend on the fake runtime, and adds to the record (recorder.h)
/// which memory each operation reads and writes, and which blocks the pool gives out and gets back:
/// what check_races() needs to know. Tensors belong to this backend.
class NotingBackend final : public ForwardingBackend {
 public:
  explicit NotingBackend(CudaBackend& inner) : ForwardingBackend(inner), cuda_(inner) {}

  std::shared_ptr<Storage> allocate(std::size_t bytes) override;
  void fill(const Tensor& x, double value) override;
  PeerMemory* peer_memory() override;  ///< whose signals and waits are noted

 protected:
  void before(std::string_view name, const Accesses& accesses) override;
  bool notes_accesses() const override { return true; }

 private:
  CudaBackend& cuda_;
  std::unique_ptr<PeerMemory> peers_;
};

}  // namespace starling::cuda::shim
