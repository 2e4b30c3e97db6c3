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

/// Words in pinned host memory: the device reports a wait that timed out, and the host tells it to
/// stop waiting.
struct PeerWords {
  std::uint32_t stop_waiting = 0;  ///< nonzero: stop waiting
  std::uint32_t timed_out = 0;     ///< nonzero: the other fields describe the wait that timed out
  std::int32_t rank = 0, bucket = 0, kind = 0;
  std::uint32_t wanted = 0, seen = 0;
  /// Written by the host: milliseconds during which its process was running, the clock of time
  /// limits
  std::uint32_t clock_ms = 0;
  static constexpr std::uint32_t kTick = 50;  ///< milliseconds
};

/// The counters that one launch waits for.
struct AwaitedCounters {
  static constexpr int kMost = 8;
  // Plain arrays, since kernel arguments of other types cannot be indexed
  const std::uint32_t* counters[kMost] = {};
  std::int32_t ranks[kMost] = {};
  std::int32_t count = 0;
};

/// Blocks are allocated and mapped by runtime.h; signals and waits are one-thread kernels, in
/// graphs too.
class CudaPeerMemory final : public PeerMemory {
 public:
  /// The backend must outlive it; blocks may outlive both.
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

  void signal(std::uint32_t* counter, std::uint32_t value) override;
  void await(std::span<const Awaited> counters, std::uint32_t value, const Purpose& purpose,
             double limit_seconds) override;

 private:
  void load_kernels();  ///< peer.cu
  void tick();          ///< updates `clock_ms` periodically from now on

  CudaBackend& backend_;
  std::shared_ptr<std::byte> pinned_;
  PeerWords* words_;
  std::atomic<bool> stop_{false};
  std::thread ticks_;
};

}  // namespace starling::cuda
