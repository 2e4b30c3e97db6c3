#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"

namespace starling {

/// Shared memory of the ranks of a host: one rank owns and writes it, the others read it. Freed
/// with the last handle.
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

/// The blocks of a host's ranks, ordered as `local`, or why there are none.
template <class Block>
struct HostBlocks {
  std::vector<std::shared_ptr<Block>> of;
  std::string refusal;
};
using SharedBlocks = HostBlocks<SharedBlock>;

/// How ranks are distributed over hosts.
struct HostRanks {
  std::vector<int> local;  ///< on this rank's host, ascending, including this one
  bool one_host = false;   ///< all ranks are on one host
  bool any_share = false;  ///< some host has several ranks
};
/// Ranks with the same `own_host` are on one host. Collective.
HostRanks find_hosts(World& world, const std::string& own_host);

/// A way to share memory between the ranks of a host.
class MemorySharing {
 public:
  virtual ~MemorySharing() = default;
  /// Ranks with the same result can share memory.
  virtual std::string host() const = 0;
  enum class Kind : std::uint8_t {
    kOfEach,   ///< a block of each rank, which it alone writes
    kSparse,   ///< the same, but a page has memory only once it is written
    kOfFirst,  ///< one block, owned by the first of `local` and written by all of them; the other
               ///< ranks' blocks are minimal
  };
  /// Allocates a zeroed, page-aligned block of `bytes` for each rank (equal on all ranks of a
  /// host), and maps those of the other ranks in `local`: of this host, ascending, including this
  /// one. If any rank of the world fails all get the same refusal. Collective over `world`.
  virtual SharedBlocks share(World& world, const std::vector<int>& local, std::size_t bytes,
                             Kind kind = Kind::kOfEach) = 0;
};

/// Between processes: an anonymous memory file (memfd), whose descriptor is passed over a socket in
/// the abstract namespace. Needs neither /dev/shm nor other files, and the kernel frees everything
/// with the last process.
std::unique_ptr<MemorySharing> make_process_sharing(double timeout_seconds);

}  // namespace starling
