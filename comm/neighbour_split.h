#pragma once

#include <algorithm>
#include <vector>

#include "comm/transport.h"

namespace starling::detail {

/// An exchange with neighbours, divided: who is read where its parameters lie, and what goes by messages.
struct NeighbourSplit {
  std::vector<int> read;       ///< ranks whose parameters this one reads
  std::vector<int> readers;    ///< ranks that read this one's
  Exchange rest;               ///< with all others
  std::vector<Tensor> places;  ///< for what the rest brings: some of the buffers
  bool has_rest() const { return !rest.send_to.empty() || !rest.receive_from.empty(); }
};

/// `received` becomes the tensors that hold what the exchange brings, in its order: parameters_of(rank) where can_read(rank), otherwise the
/// next of the buffers.
template <class CanRead, class ParametersOf>
NeighbourSplit split_neighbours(const Exchange& exchange, const std::vector<Tensor>& buffers, std::vector<Tensor>& received,
                                const CanRead& can_read, const ParametersOf& parameters_of) {
  NeighbourSplit split;
  split.rest.kind = Exchange::Kind::kNeighbours;
  for (const int peer : exchange.send_to) (can_read(peer) ? split.readers : split.rest.send_to).push_back(peer);
  for (const int peer : exchange.receive_from) {
    if (can_read(peer)) {
      split.read.push_back(peer);
      received.push_back(parameters_of(peer));
    } else {
      split.rest.receive_from.push_back(peer);
      split.places.push_back(buffers[split.places.size()]);
      received.push_back(split.places.back());
    }
  }
  return split;
}

/// Adds those that are not there yet.
inline void add_readers(const std::vector<int>& readers, std::vector<int>& to) {
  for (const int reader : readers) {
    if (std::find(to.begin(), to.end(), reader) == to.end()) to.push_back(reader);
  }
}

}  // namespace starling::detail
