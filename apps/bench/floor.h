#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

/// `starling-bench floor`: the bytes and the arithmetic of a training step, from shapes alone, over a device's ceilings. Runs anywhere.
struct FloorBench {
  std::string config;                    ///< a config's path; empty: the rows that docs/gpu.md sets goals for
  std::vector<std::string> settings;     ///< as starling-train --set
  std::int64_t batch = 0;                ///< 0: the config's
  std::string precision;                 ///< empty: the config's
  double bandwidth = 0.0, tflops = 0.0;  ///< TB/s and TFLOP/s; 0: an H200's
  int ranks = 1;
  bool json = false;
};

/// Prints a table, or JSON. Returns the exit status.
int bench_floor(const FloorBench& settings);

}  // namespace starling
