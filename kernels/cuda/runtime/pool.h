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

/// Device memory for tensors. Freed blocks are kept by stream and size class and handed out again
/// on the same stream, without a wait: whatever the stream was told to do with a block before comes
/// before what it is told next. The driver is asked only while the pool grows: small blocks are cut
/// from slabs, large ones are their own. Thread-safe.
///
/// Graphs have blocks of their own, for a replay writes where its capture did: from begin_capture()
/// to end_capture() the capturing thread gets these alone, and they come back to all work once no
/// graph is left. Graphs run one after the other, each joined with the stream that it is launched
/// on (kCompute), so one's blocks serve the next too; within a capture a block stays with its
/// stream. What outlives a capture keeps its block, and its numbers until the next graph runs.
class Pool {
 public:
  /// `device`: whose memory; `name` for messages; `wait_for_all` makes the host wait for all
  /// streams.
  Pool(int device, std::string name, std::function<void()> wait_for_all);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  struct Block {
    std::byte* data = nullptr;
    std::size_t size = 0;  ///< what it can hold
    StreamKind stream = StreamKind::kCompute;
    bool graphs = false;  ///< a replay may write it
  };
  /// Takes at least `bytes` bytes, aligned to 512, for work on `stream`. Error(kMemory) with the
  /// needed and the free bytes where there are none, after all cached blocks have been given back
  /// to the driver.
  Block take(std::size_t bytes, StreamKind stream);
  void give_back(const Block& block) noexcept;
  MemoryStats stats() const;

  /// The calling thread captures from now on. All streams' earlier work comes before what kCompute
  /// is told next.
  void begin_capture();
  /// `kept`: a graph has come of it, which release_graph() will tell the end of.
  void end_capture(bool kept) noexcept;
  void release_graph() noexcept;
  std::size_t graph_bytes() const;  ///< of blocks that belong to graphs, in use or not
  /// No wait from now on: the streams are gone.
  void close();

  /// The size class of a request: 512 bytes and up, at most an eighth is wasted above 4 KiB.
  static std::size_t size_class(std::size_t bytes);
  /// Requests above it own their memory.
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
  std::array<FreeBlocks, kStreamKinds> free_;           ///< by stream
  std::array<FreeBlocks, kStreamKinds> captured_free_;  ///< of graphs: died within this capture
  FreeBlocks graph_free_;                               ///< of graphs: died before it
  std::thread::id capturing_{};                         ///< none: no thread
  int graphs_ = 0;
  std::size_t graph_bytes_ = 0;
  std::vector<std::byte*> slabs_;
  std::byte* cut_ = nullptr;  ///< what is left of the newest slab
  std::size_t left_ = 0;
  MemoryStats stats_;
};

}  // namespace starling::cuda
