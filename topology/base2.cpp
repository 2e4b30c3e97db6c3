#include <cstddef>

#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {
namespace {

/// Consecutive ranks, a power of two of them.
struct Block {
  int first = 0, size = 0, log_size = 0;
};

/// n = 2^p1 + 2^p2 + …, the largest first.
std::vector<Block> binary_blocks(int n) {
  std::vector<Block> blocks;
  int first = 0;
  for (int log_size = 30; log_size >= 0; --log_size) {
    const int size = 1 << log_size;
    if ((n & size) == 0) continue;
    blocks.push_back({first, size, log_size});
    first += size;
  }
  return blocks;
}

/// Round `step` of a block's own hypercube, repeated: halves of the disagreement in dimension step
/// mod log2(size).
void add_hypercube(const Block& block, int step, Round& round) {
  if (block.size == 1) return;
  const int bit = 1 << (step % block.log_size);
  for (int i = 0; i < block.size; ++i) {
    if ((i & bit) == 0)
      round.groups.push_back(pair_group(block.first + i, block.first + (i | bit)));
  }
}

/// Simple Base-2 (Takezawa et al. 2023, algorithm 1 for k = 1): blocks agree inside, hand on what
/// the later ones lack, and agree again.
std::vector<Round> simple_base2(int n) {
  const std::vector<Block> blocks = binary_blocks(n);
  const int count = static_cast<int>(blocks.size());
  const int p1 = blocks[0].log_size;
  std::vector<Round> rounds(static_cast<std::size_t>(count == 1 ? p1 : 2 * p1 + 1));
  for (int k = 0; k < static_cast<int>(rounds.size()); ++k) {
    Round& round = rounds[static_cast<std::size_t>(k)];
    const int q = k - p1;  // the block that gives in this round, where 0 ≤ q < count - 1
    for (int b = 0; b < count; ++b) {
      const Block& block = blocks[static_cast<std::size_t>(b)];
      if (k < p1) {
        add_hypercube(block, k, round);
      } else if (b < q || q >= count - 1) {
        // Done with giving: round p1 + b + 1 (the last block: one earlier) is its first again.
        add_hypercube(block, b == count - 1 ? q - b : q - b - 1, round);
      } else if (b == q) {
        const int rest = n - block.first;  // ranks of this and the later blocks
        int free_end = block.first + block.size;
        for (int later = block.first + block.size; later < n; ++later) {
          // Self weight: the complement of |V_q| / rest.
          round.groups.push_back(
              pair_group(later, --free_end, static_cast<double>(rest - block.size) / rest));
        }
        for (int i = block.first; i + 1 < free_end; i += 2)
          round.groups.push_back(pair_group(i, i + 1));
      }
    }
  }
  return rounds;
}

/// The Base-2 graph: Simple Base-2 in p blocks of n/p ranks, p the largest power of two in n, then
/// a hypercube across the blocks.
std::vector<Round> base2_rounds(int n) {
  int blocks = 1;
  while (n % (2 * blocks) == 0) blocks *= 2;
  const int size = n / blocks;
  std::vector<Round> rounds = simple_base2(size);
  for (Round& round : rounds) {
    const std::vector<Group> first = round.groups;
    for (int b = 1; b < blocks; ++b) {
      for (Group group : first) {
        for (int& rank : group.ranks) rank += b * size;
        round.groups.push_back(std::move(group));
      }
    }
  }
  for (int bit = 1; bit < blocks; bit *= 2) {
    Round& round = rounds.emplace_back();
    for (int b = 0; b < blocks; ++b) {
      for (int i = 0; i < size && (b & bit) == 0; ++i)
        round.groups.push_back(pair_group(b * size + i, (b | bit) * size + i));
    }
  }
  std::vector<Round> plain = simple_base2(n);
  return plain.size() < rounds.size() ? plain : rounds;
}

}  // namespace

/// Base-2 graph (Takezawa et al. 2023, "Beyond Exponential Graph", arXiv 2305.11420): pairs only,
/// any number of ranks, exact consensus in at most 2 log2 n + 1 rounds.
std::unique_ptr<Topology> make_base2(ConfigSection&, const RankLayout& site) {
  return std::make_unique<RoundTable>(site.ranks, base2_rounds(site.ranks));
}

}  // namespace starling
