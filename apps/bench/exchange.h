#pragma once

#include <string>

namespace starling {

struct ExchangeBench {
  double mb = 25.0;  ///< MiB of the bucket
  std::string optimizer = "adamw";
  int threads = 1, repeats = 30;
  int buckets = 1;  ///< taken in turn: many find the caches cold, one finds them as it left them
  bool json = false;
};

/// `mpirun -n 2 starling-bench exchange`: one pair's exchange and mixed update of a bucket, alternating in one run: by reading the
/// neighbour's parameters where they lie, by MPI_Sendrecv and the same update kernel, by our own transport over MPI; and the update alone,
/// and with a local buffer mixed in. Times are the slowest rank's. Prints a table, or one JSON object. Returns the exit status.
int bench_exchange(const ExchangeBench& settings);

}  // namespace starling
