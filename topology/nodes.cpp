#include "core/error.h"
#include "topology/builtin.h"
#include "topology/round_table.h"

// Topologies that know of nodes: consecutive ranks with a fast link.
namespace starling {
namespace {

/// Rounds A and B for each exponent b: node pairs (j, j + 2^b), formed greedily, take turns (by a
/// counter that runs over all exponents) in which of the two rounds they use the link between
/// nodes; in the other each node averages inside. So about half of the node pairs load the network
/// at a time.
std::vector<Round> alternating_rounds(int nodes, int per_node) {
  std::vector<Round> rounds;
  int counter = 0;
  for (int distance = 1; distance < nodes; distance *= 2) {
    Round a, b;
    std::vector<char> paired(static_cast<std::size_t>(nodes), 0);
    for (int j = 0; j < nodes; ++j) {
      const int other = j + distance;
      if (paired[static_cast<std::size_t>(j)]) continue;
      paired[static_cast<std::size_t>(j)] = paired[static_cast<std::size_t>(other)] = 1;
      Group merged = mean_group(j * per_node, per_node);
      for (int i = 0; i < per_node; ++i) merged.ranks.push_back(other * per_node + i);
      merged.self_weight = 1.0 / (2 * per_node);
      const bool even = counter++ % 2 == 0;
      Round& inside = even ? a : b;
      if (per_node > 1) {
        inside.groups.push_back(mean_group(j * per_node, per_node));
        inside.groups.push_back(mean_group(other * per_node, per_node));
      }
      (even ? b : a).groups.push_back(std::move(merged));
    }
    rounds.push_back(std::move(a));
    rounds.push_back(std::move(b));
  }
  return rounds;
}

class Hierarchical : public Topology {
 public:
  Hierarchical(std::unique_ptr<Topology> inter, int per_node)
      : Topology(inter->ranks() * per_node), inter_(std::move(inter)), per_node_(per_node) {}
  std::int64_t period() const override { return inter_->period(); }

 protected:
  Round make_round(std::int64_t k) const override {
    Round round = inter_->round(k);
    // Means of means: a hierarchical `inter` only has larger nodes.
    if (per_node_ > 1 || round.ranks_per_node > 1)
      put_over_nodes(round, inter_->ranks() / round.ranks_per_node,
                     per_node_ * round.ranks_per_node);
    return round;
  }

 private:
  std::unique_ptr<Topology> inter_;
  int per_node_;
};

/// The topology between nodes; an error about their number says that it counts nodes.
std::unique_ptr<Topology> make_inter(ConfigSection& section, int nodes, int per_node) {
  try {
    return make_unchecked_topology(section, {nodes, 1});
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    if (parts.component != "topology") throw;
    parts.what = fmt::format("hierarchical over {} nodes of {} rank{}, {}: {}", nodes, per_node,
                             per_node == 1 ? "" : "s", section.path(), parts.what);
    throw Error(ExitCode::kUsage, std::move(parts));
  }
}

}  // namespace

/// Alternating exponential ring, decent-dp's default for clusters of multi-GPU nodes.
std::unique_ptr<Topology> make_alternating_exp_ring(ConfigSection& section,
                                                    const RankLayout& site) {
  const int n = site.ranks;
  const int per_node = read_ranks_per_node(section, site);
  if (n == 1) return std::make_unique<RoundTable>(1);
  if (n % per_node != 0 || n == per_node || !is_power_of_two(n / per_node)) {
    fail(ExitCode::kUsage, "topology",
         "alternating-exp-ring needs a number of nodes (ranks / ranks_per_node) that is 2, 4, 8, "
         "…, not {}/{}; set ranks_per_node, or for {} ranks: {}",
         n, per_node, n, topologies_that_take(site));
  }
  return std::make_unique<RoundTable>(n, alternating_rounds(n / per_node, per_node));
}

/// The mean inside every node, `inter` between the nodes, and back.
std::unique_ptr<Topology> make_hierarchical(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks;
  const int per_node = read_ranks_per_node(section, site);
  ConfigSection inter = section.section(
      "inter", "the topology between nodes, any type with its keys; a name alone is its type",
      "type");
  // One rank is the identity, so that a config can be tried without mpirun.
  if (n != 1 && n % per_node != 0) {
    fail(ExitCode::kUsage, "topology",
         "hierarchical needs whole nodes: a number of ranks that ranks_per_node = {} divides, not "
         "{}; set ranks_per_node, or for {} ranks: {}",
         per_node, n, n, topologies_that_take(site));
  }
  const int actual = n == 1 ? 1 : per_node;
  return std::make_unique<Hierarchical>(make_inter(inter, n / actual, actual), actual);
}

}  // namespace starling
