#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/shared/memory_sharing.h"
#include "comm/world.h"

// How open files go from one rank of a host to the others.
namespace starling::detail {

/// Throws Error "call: the reason", with errno's. What goes wrong while ranks share memory ends in
/// a fallback, never in the end of the program.
[[noreturn]] void refuse(const char* call);

/// An open file, closed with this.
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

/// Collective over all ranks of `world`: every rank of a host gives the others of it (`local`:
/// ascending, this one included) a file, which make() opens, over a socket in the abstract
/// namespace, and gets theirs: accept(k, file) is called for each local[k]. Both may throw. Where
/// any rank of the world fails, all ranks return the same reason; otherwise "". Ranks that share
/// with nobody take part without a file.
std::string swap_descriptors(World& world, const std::vector<int>& local, double timeout_seconds,
                             const std::function<Descriptor()>& make,
                             const std::function<void(std::size_t, Descriptor)>& accept);

/// Shares a block a rank in this way: make(file) makes this rank's and opens its file, map(file)
/// maps another's.
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
      [&](std::size_t place, const Descriptor& file) { blocks.of[place] = map(file); });
  if (!blocks.refusal.empty()) blocks.of.clear();
  return blocks;
}

}  // namespace starling::detail
