#include "apps/topo/commands.h"

#include <nlohmann/json.hpp>

#include "core/config.h"

namespace starling {

void add_topology_options(CLI::App& command, TopologyChoice& choice) {
  command
      .add_option("TYPE", choice.type,
                  "the topology's name: complete, ring, one-peer-exp, base-2, …")
      ->required();
  command.add_option("-n,--ranks", choice.ranks, "number of ranks")
      ->required()
      ->check(whole_in(1, 65536));
  add_number(command, "--ranks-per-node", choice.ranks_per_node,
             "consecutive ranks that share a node", 1, 65536);
  add_list(command, "--set", choice.settings, "a key of the topology, as KEY=VALUE (repeatable)");
}

ChosenTopology choose_topology(const TopologyChoice& choice) {
  register_builtin_topologies();
  nlohmann::json config = {{"type", choice.type}};
  for (const std::string& setting : choice.settings) apply_setting(config, setting);
  ConfigSection section(config, "starling-topo");
  ChosenTopology chosen;
  chosen.topology = make_unchecked_topology(section, {choice.ranks, choice.ranks_per_node});
  chosen.name = config.value("type", choice.type);
  chosen.report = check_topology(*chosen.topology, chosen.name);
  return chosen;
}

}  // namespace starling
