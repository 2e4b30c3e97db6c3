#pragma once

// For authors of topologies: `Topology` and its rounds, `RoundTable` for those of a few fixed ones,
// `topologies()` to add to.

#include "core/config.h"
#include "core/error.h"
#include "core/registry.h"
#include "topology/round_table.h"
#include "topology/topology.h"
