#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/comm/support.h"

namespace starling::test {

/// The problem that is trained, where it is not the job's quadratics.
struct PlainProblem {
  std::vector<std::vector<double>> start;  ///< by rank
  std::vector<bool> decays;                ///< by element: weight decay applies
  std::vector<std::size_t> bucket_of;      ///< by element
  /// What compression needs: each element's place in its bucket's message, and the elements of each
  /// bucket, padding included.
  std::vector<std::size_t> place_of = {}, message_sizes = {};
  /// Every rank's gradient at its x in step t.
  std::function<std::vector<std::vector<double>>(const std::vector<std::vector<double>>& x, int t)>
      gradients;
};

/// Trains by sections 2 to 6 and mix_states of algorithms.md, but for async, for SGD, Adam
/// and (on the quadratics) Muon. Every rank is in one loop, in fp64, straight from the formulas. Of
/// the code under test it takes the topologies alone. `job.algorithm` may leave keys out, as a
/// config may; `job.exchange` tells in gossip and qgm alone.
std::vector<std::vector<double>> run_plain_family(const Job& job, int ranks,
                                                  const PlainProblem* problem = nullptr);

}  // namespace starling::test
