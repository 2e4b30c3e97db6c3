#pragma once

#include <string>

#include "topology/check.h"
#include "topology/topology.h"

namespace starling {

/// A picture of a topology as an SVG document: one panel a round (at most 16) with the ranks on a
/// circle and a line for each pair that mixes, and how disagreement falls with the rounds.
std::string topology_svg(const Topology& topology, const TopologyReport& report,
                         const std::string& title);

}  // namespace starling
