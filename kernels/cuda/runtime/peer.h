#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "core/peer_memory.h"

namespace starling::cuda {

class CudaBackend;

/// Words in pinned host memory, where the device says what it waited for in vain, and the host that
/// nothing is to be awaited any more.
struct PeerWords {
  std::uint32_t lost = 0;  ///< not 0: nothing is awaited any more
  std::uint32_t told = 0;  ///< not 0: the rest holds what was lost
  std::int32_t rank = 0, bucket = 0, kind = 0;
  std::uint32_t wanted = 0, seen = 0;
  /// By the host: milliseconds in which its process ran, by which limits go
  std::uint32_t ran = 0;
  static constexpr std::uint32_t kTick = 50;  ///< milliseconds
};

/// The counters of one launch.
struct AwaitedCounters {
  static constexpr int kMost = 8;
  // Plain arrays, which a kernel's argument may be indexed by
  const std::uint32_t* counters[kMost] = {};
  std::int32_t ranks[kMost] = {};
  std::int32_t count = 0;
};

/// Blocks are allocated and mapped by the runtime (runtime.h); signals and waits are kernels of one
/// thread, both eagerly and in graphs.
class CudaPeerMemory final : public PeerMemory {
 public:
  /// The backend outlives it; blocks may outlive both.
  explicit CudaPeerMemory(CudaBackend& backend);
  ~CudaPeerMemory() override;

  std::string device() const override;
  std::string why_not_exported() const override;
  std::string why_not_reached(const std::string& device) const override;
  std::shared_ptr<PeerBlock> create(std::size_t bytes, int& descriptor) override;
  std::shared_ptr<PeerBlock> map(int descriptor, std::size_t bytes) override;
  std::optional<Loss> lost() const override;
  void give_up() override;
  void restart() override;

  /// Peer.cu
  void signal(std::uint32_t* counter, std::uint32_t value) override;
  /// Peer.cu
  void await(std::span<const Awaited> counters, std::uint32_t value, const Purpose& purpose,
             double limit_seconds) override;

 private:
  void load_kernels();  ///< peer.cu
  void tick();          ///< from now on `ran` advances

  CudaBackend& backend_;
  std::shared_ptr<std::byte> pinned_;
  PeerWords* words_;
  std::atomic<bool> stop_{false};
  std::thread ticks_;
};

}  // namespace starling::cuda
