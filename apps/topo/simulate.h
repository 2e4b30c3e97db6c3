#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

#include "apps/topo/command.h"
#include "topology/simulation.h"

namespace starling {

struct SimulateOptions {
  TopologyChoice choice;
  SimulationOptions simulation;
  std::int64_t rounds = 32;
  bool json = false;
};

/// `starling-topo simulate`: gossip on quadratics, all ranks in one process.
CLI::App* add_simulate(CLI::App& app, SimulateOptions& options);
void simulate(const SimulateOptions& options);

}  // namespace starling
