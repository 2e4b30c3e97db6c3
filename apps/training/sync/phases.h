#pragma once

#include "apps/training/sync/sync_settings.h"
#include "core/config.h"

// The algorithms of a run and their topologies: the first one, and those of `sync.switch`.
namespace starling {

/// Reads `sync.algorithm`. `auto`: gossip or all-reduce, whichever is expected to come to a loss
/// sooner; the topology is then chosen too.
AlgorithmPlan read_first_algorithm(ConfigSection& algorithm, SyncSettings& settings);
/// Refuses what the algorithm says it does not go with. `sync` is the section that has the
/// algorithm: the whole run's, or that of a switch.
void check_algorithm(const ConfigSection& sync, const AlgorithmPlan& plan,
                     const SyncPartners& with);
/// Reads `sync.topology`.
void read_first_topology(ConfigSection& sync, const SyncPartners& with, SyncSettings& settings);
/// Reads the phases after the first one, the items of `sync.switch`. A topology that a phase does
/// not give is that of the one before.
void read_switch(const ConfigSection& sync, const std::vector<ConfigSection>& changes,
                 const SyncPartners& with, SyncSettings& settings);

}  // namespace starling
