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

/// A block for each rank of a host, at their places in `local`, or why there are none.
template <class Block>
struct HostBlocks {
  std::vector<std::shared_ptr<Block>> of;
  std::string refusal;
};
using SharedBlocks = HostBlocks<SharedBlock>;

/// Who is on whose host: ranks that give the same answer are on one.
struct HostRanks {
  std::vector<int> local;  ///< of this rank's host, ascending, this one included
  bool one_host = false;   ///< there is no other
  bool any_share = false;  ///< some host has several ranks
};
/// Collective.
HostRanks find_hosts(World& world, const std::string& own_host);

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
