#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "topology/check.h"
#include "topology/topology.h"

namespace starling {

/// The arguments with which a subcommand names a topology: TYPE -n N [--ranks-per-node L] [--set KEY=VALUE]...
struct TopologyChoice {
  std::string type;
  int ranks = 0;
  int ranks_per_node = 1;
  std::vector<std::string> settings;
};
void add_topology_options(CLI::App& command, TopologyChoice& choice);

struct ChosenTopology {
  std::unique_ptr<Topology> topology;
  TopologyReport report;
  std::string name;
};
/// Makes and checks it.
ChosenTopology choose_topology(const TopologyChoice& choice);

}  // namespace starling
