#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "apps/training/output/arguments.h"
#include "topology/check.h"
#include "topology/topology.h"

// starling-topo's subcommands, a source file each, and what they share.
namespace starling {

/// The arguments that name a topology: TYPE -n N [--ranks-per-node L] [--set KEY=VALUE]...
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

/// `starling-topo show`: a topology's rounds and figures as text, JSON or a picture.
Command add_show(CLI::App& app);
/// `starling-topo simulate`: gossip on quadratics, all ranks in one process.
Command add_simulate(CLI::App& app);
/// `starling-topo measure`, under mpirun: latency and bandwidth on the real ranks.
Command add_measure(CLI::App& app);
/// `starling-topo plan`: what topologies and bucket sizes would cost on a network.
Command add_plan(CLI::App& app);

}  // namespace starling
