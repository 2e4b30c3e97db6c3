#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/backend.h"

namespace starling::cuda {

/// Device memory for tensors. Freed blocks are cached by stream and size class and reused on the
/// same stream without waiting, since the stream executes earlier work on a block first. The driver
/// is only called while the pool grows: small blocks are cut from slabs, large ones are allocated
/// separately. Thread-safe.
///
/// Graphs have separate blocks, since each replay writes to the addresses of its capture. Between
/// begin_capture() and end_capture() the capturing thread gets only such blocks; they return to
/// general use when no graph is left. Graphs run one after another, each ordered with the stream
/// that launches it (kCompute), so they can share blocks; within a capture a block is only reused
/// on its stream. Tensors that outlive a capture keep their block, and its contents until the next
/// graph runs.
class Pool {
 public:
  /// `device`: whose memory; `name`: for messages; `wait_for_all`: makes the host wait for all
  /// streams.
  Pool(int device, std::string name, std::function<void()> wait_for_all);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  struct Block {
    std::byte* data = nullptr;
    std::size_t size = 0;  ///< usable size
    StreamKind stream = StreamKind::kCompute;
    bool graphs = false;  ///< belongs to graphs: a replay may write it
  };
  /// Returns a block of at least `bytes` bytes, aligned to 512, for work on `stream`. If the device
  /// has no memory left, frees all cached blocks and tries again, then throws Error(kMemory) with
  /// the needed and the free bytes.
  Block take(std::size_t bytes, StreamKind stream);
  void give_back(const Block& block) noexcept;
  MemoryStats stats() const;

  /// The calling thread captures from now on. Earlier work of all streams must precede further work
  /// on kCompute.
  void begin_capture();
  /// `kept`: the capture became a graph, which ends with release_graph().
  void end_capture(bool kept) noexcept;
  void release_graph() noexcept;
  std::size_t graph_bytes() const;  ///< of blocks that belong to graphs, used or not
  /// Disables waiting, since the streams are destroyed.
  void close();

  /// The size class of a request: at least 512 bytes; above 4 KiB at most an eighth is unused.
  static std::size_t size_class(std::size_t bytes);
  /// Larger requests are allocated separately.
  static constexpr std::size_t kLargestSmall = std::size_t{4} << 20;
  static constexpr std::size_t kSlab = std::size_t{32} << 20;

 private:
  using FreeBlocks = std::map<std::size_t, std::vector<std::byte*>>;  ///< by size
  static std::byte* from_list(FreeBlocks& free, std::size_t& size);
  std::byte* from_cache(std::size_t& size, StreamKind stream);
  std::byte* for_graph(std::size_t& size, StreamKind stream);
  void dissolve_graphs();
  std::byte* from_driver(std::size_t size);
  std::byte* driver_allocate(std::size_t size);
  std::size_t release_cached();
  [[noreturn]] void out_of_memory(std::size_t size) const;

  const int device_;
  const std::string name_;
  std::function<void()> wait_for_all_;
  mutable std::mutex mutex_;
  std::array<FreeBlocks, kStreamKinds> free_;  ///< by stream
  /// Of graphs: freed during this capture, by stream
  std::array<FreeBlocks, kStreamKinds> captured_free_;
  FreeBlocks graph_free_;        ///< of graphs: freed before this capture
  std::thread::id capturing_{};  ///< none: no thread
  int graphs_ = 0;
  std::size_t graph_bytes_ = 0;
  std::vector<std::byte*> slabs_;
  std::byte* cut_ = nullptr;  ///< the unused rest of the newest slab
  std::size_t left_ = 0;
  MemoryStats stats_;
};

}  // namespace starling::cuda
