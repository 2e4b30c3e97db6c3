
#include "core/error.h"
#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {
namespace {

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
         "hierarchical needs whole nodes: a number of ranks that ranks_per_node = {} "
         "divides, not {}; set ranks_per_node, or for {} "
         "ranks: {}",
         per_node, n, n, topologies_that_take(site));
  }
  const int actual = n == 1 ? 1 : per_node;
  return std::make_unique<Hierarchical>(make_inter(inter, n / actual, actual), actual);
}

}  // namespace starling
