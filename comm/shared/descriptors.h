#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/shared/memory_sharing.h"
#include "comm/world.h"

// Passes open file descriptors between the ranks of a host.
namespace starling::detail {

/// Throws Error "call: reason of errno". Errors while ranks set up shared memory lead to a
/// fallback; they do not end the program.
[[noreturn]] void refuse(const char* call);

/// Owns an open file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

/// Each rank passes the file that make() opens to the other ranks of its host, over a socket in the
/// abstract namespace, and calls accept(k, file) for the one of each local[k]. `local`: the ranks
/// of this host, ascending, including this one. Both functions may throw. If any rank of the world
/// fails all return the same reason; otherwise "". Collective over `world`; a rank alone on its
/// host calls it as well.
std::string swap_descriptors(World& world, const std::vector<int>& local, double timeout_seconds,
                             const std::function<Descriptor()>& make,
                             const std::function<void(std::size_t, Descriptor)>& accept);

/// Shares one block of memory per rank: make(file) makes this rank's and opens its file, map(k,
/// file) maps that of local[k].
template <class Block, class Make, class Map>
HostBlocks<Block> share_blocks(World& world, const std::vector<int>& local, double timeout_seconds,
                               const Make& make, const Map& map) {
  HostBlocks<Block> blocks;
  blocks.of.resize(local.size());
  const auto own = std::lower_bound(local.begin(), local.end(), world.rank()) - local.begin();
  blocks.refusal = swap_descriptors(
      world, local, timeout_seconds,
      [&] {
        Descriptor file;
        blocks.of[static_cast<std::size_t>(own)] = make(file);
        return file;
      },
      [&](std::size_t place, const Descriptor& file) { blocks.of[place] = map(place, file); });
  if (!blocks.refusal.empty()) blocks.of.clear();
  return blocks;
}

}  // namespace starling::detail
