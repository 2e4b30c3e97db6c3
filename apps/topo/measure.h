#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace starling {

struct MeasureOptions {
  double seconds = 4.0;
  double timeout = 60.0;
  int threads = 0;  ///< 0: an equal share of the host's cores
  std::string output;
};

/// `starling-topo measure`, under mpirun: latency and bandwidth inside a host, between hosts, and of memory, on the real ranks.
CLI::App* add_measure(CLI::App& app, MeasureOptions& options);
/// Returns the exit status; every rank calls it.
int measure(const MeasureOptions& options);

}  // namespace starling
