#pragma once

#include <functional>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace starling {

/// How a rank weighs its own value and its neighbours'; the key `weights` of the topologies in
/// which every rank mixes with all neighbours.
struct NeighbourWeights {
  enum class Rule {
    /// 1/(d + 1) each, d the number of different neighbours: doubly stochastic if all ranks have
    /// the same number
    kUniform,
    /// 1/(1 + max(d_i, d_j)), oneself the rest: doubly stochastic on every undirected graph
    kMetropolis,
    kGiven,  ///< a list: one's own weight, then that of each neighbour in the topology's order
  } rule = Rule::kUniform;
  std::vector<double> given;
};

/// Reads `weights`. `order` names a list's numbers, "own, left, right"; "" where a list makes no
/// sense. `numbers` is how many those are.
NeighbourWeights read_weights(ConfigSection& section, NeighbourWeights::Rule fallback,
                              const std::string& order, int ranks, int numbers);

/// The round in which rank i mixes with neighbours_of(i), all at once. Neighbours that coincide, or
/// are the rank itself, count once, with their given weights added.
Round neighbour_round(int ranks, const NeighbourWeights& weights,
                      const std::function<std::vector<int>(int)>& neighbours_of);

}  // namespace starling
