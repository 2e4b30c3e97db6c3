#include "apps/topo/commands.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/console.h"
#include "core/error.h"
#include "core/text.h"
#include "topology/simulation.h"

namespace starling {
namespace {

struct SimulateOptions {
  TopologyChoice choice;
  SimulationOptions simulation;
  std::int64_t rounds = 32;
  bool json = false;
};

int simulate(const SimulateOptions& options) {
  const ChosenTopology chosen = choose_topology(options.choice);
  Simulation simulation(*chosen.topology, options.simulation);
  std::vector<double> errors, distances;
  for (std::int64_t k = 0;; ++k) {
    errors.push_back(simulation.consensus_error());
    distances.push_back(simulation.distance());
    if (!std::isfinite(errors.back()) || !std::isfinite(distances.back())) {
      fail(ExitCode::kDiverged, "simulate",
           "the values became infinite in round {}; use a smaller --lr than {}", k,
           options.simulation.lr);
    }
    if (k == options.rounds) break;
    simulation.advance();
  }
  if (options.json) {
    const nlohmann::ordered_json result = {{"topology", chosen.name},
                                           {"ranks", options.choice.ranks},
                                           {"lr", options.simulation.lr},
                                           {"dimension", options.simulation.dimension},
                                           {"heterogeneity", options.simulation.heterogeneity},
                                           {"seed", options.simulation.seed},
                                           {"consensus_error", errors},
                                           {"distance", distances}};
    answer(result.dump() + "\n");
    return 0;
  }
  const SimulationOptions& s = options.simulation;
  std::string text = fmt::format("{}, {}, {}, lr {}, heterogeneity {}, seed {}\n", chosen.name,
                                 counted(options.choice.ranks, "rank"),
                                 counted(s.dimension, "dimension"), s.lr, s.heterogeneity, s.seed);
  text += " rounds  consensus error  mean to optimum\n";
  for (std::size_t k = 0; k < errors.size(); ++k)
    text += fmt::format("{:7}  {:15.6e}  {:15.6e}\n", k, errors[k], distances[k]);
  answer(text);
  return 0;
}

}  // namespace

Command add_simulate(CLI::App& app) {
  const auto given = std::make_shared<SimulateOptions>();
  SimulateOptions& options = *given;
  CLI::App* command = app.add_subcommand(
      "simulate", "run gossip on quadratics and print the consensus error after each round");
  add_topology_options(*command, options.choice);
  add_number(*command, "--rounds", options.rounds, "exchanges", 0, 1000000);
  add_number(*command, "--lr", options.simulation.lr,
             "learning rate; 0: averaging alone, of what the ranks' optima are", 0.0, 1e6);
  add_number(*command, "--dimension", options.simulation.dimension, "numbers a rank holds", 1,
             4096);
  add_number(*command, "--heterogeneity", options.simulation.heterogeneity,
             "standard deviation of the ranks' optima", 0.0, 1e6);
  add_number(*command, "--seed", options.simulation.seed, "what the optima are drawn from", 0,
             UINT64_MAX);
  command->add_flag("--json", options.json, "print the figures as JSON");
  return {command, [given] { return simulate(*given); }};
}

}  // namespace starling
