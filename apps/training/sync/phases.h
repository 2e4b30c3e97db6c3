#pragma once

#include "apps/training/sync/sync_settings.h"
#include "core/config.h"

// The algorithms of a run and their topologies: the first one, and those of `sync.switch`.
namespace starling {

/// Reads `sync.algorithm`. `auto`: gossip or all-reduce, whichever is expected to reach a loss
/// sooner; then the topology is chosen, too.
AlgorithmPlan read_first_algorithm(ConfigSection& algorithm, SyncSettings& settings);
/// Checks the algorithm's requirements (AlgorithmNeeds etc.). `sync`: the section with the
/// algorithm, of the run or of a switch.
void check_algorithm(const ConfigSection& sync, const AlgorithmPlan& plan,
                     const SyncPartners& with);
/// Reads `sync.topology`.
void read_first_topology(ConfigSection& sync, const SyncPartners& with, SyncSettings& settings);
/// Reads the phases after the first one, the items of `sync.switch`. By default a phase has the
/// topology of the preceding one.
void read_switch(const ConfigSection& sync, const std::vector<ConfigSection>& changes,
                 const SyncPartners& with, SyncSettings& settings);

}  // namespace starling
