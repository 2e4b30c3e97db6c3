#pragma once

#include <cstdint>
#include <string>

namespace starling {

struct KernelsBench {
  std::string device = "cpu", precision = "fp32";
  std::int64_t batch = 0;  ///< 0: by the device
  int threads = 1, repeats = 20;
  bool json = false;
};

/// `starling-bench kernels`: the rows of the operation table (tests/operations/operation_table.h) at ResNet-20's shapes, forward and
/// backward. Operations that only move memory are set against a copy in the same run, convolutions and matrix products against the fastest
/// product of the run. Prints a table, or one JSON object. Returns the exit status.
int bench_kernels(const KernelsBench& settings);

}  // namespace starling
