#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"

namespace starling {

/// A block of memory that the ranks of one host see: its owner writes, the others read. Freed with
/// the last handle.
class SharedBlock {
 public:
  virtual ~SharedBlock() = default;
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 protected:
  SharedBlock(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}

 private:
  std::byte* data_;
  std::size_t bytes_;
};

/// What share() gives: a block for each rank asked for, or why there are none.
struct SharedBlocks {
  std::vector<std::shared_ptr<SharedBlock>> of;
  std::string refusal;
};

/// How ranks of one host get at each other's memory.
class MemorySharing {
 public:
  virtual ~MemorySharing() = default;
  /// Ranks with the same answer are on one host.
  virtual std::string host() const = 0;
  /// Collective over all ranks of `world`; `local` are those of this rank's host, ascending, this
  /// one included. Each gets a zeroed block of `bytes` of its own (the same number on all ranks of
  /// a host), page-aligned, and sees the others'. Where any rank of the world fails, all ranks get
  /// the same refusal, and nothing is left behind.
  virtual SharedBlocks share(World& world, const std::vector<int>& local, std::size_t bytes) = 0;
};

/// Memory shared between processes: a memory file without a name whose descriptor goes to the
/// others over a socket in the abstract namespace. So neither /dev/shm nor any file is needed, and
/// the kernel frees everything with the last process.
std::unique_ptr<MemorySharing> make_process_sharing(double timeout_seconds);

}  // namespace starling
