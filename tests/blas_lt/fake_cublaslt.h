#pragma once

#include <cstddef>
#include <cstdint>

// A cuBLASLt on the CPU, as far as kernels/cuda/libraries/blas_lt.cpp calls it. It does
// column-major products in host memory, with the library's rules of which types go together, and
// checks of what it is promised (alignments, workspace). For tests without a GPU.
namespace starling::tests {

struct FakeBlasCounters {
  int heuristics = 0, products = 0, handles = 0;  ///< handles: created less destroyed, of all kinds
  std::size_t workspace_limit = 0;                ///< the last preference's
  /// likewise: the schemes for partial sums that it allows
  std::uint32_t reductions = 0;
  bool tf32 = false;               ///< the last description's
  int probes = 0, host_waits = 0;  ///< memory set to all ones; waits of the host
  /// What its activations do with NaN: max(x, 0) may give 0
  bool relu_drops_nan = false;
  int gelus = 0;              ///< products with GELU, or its derivative, in the epilogue
  bool without_gelu = false;  ///< as where no algorithm has that
};
FakeBlasCounters& fake_blas();

/// Workspace that the fake asks for where the inner dimension is longer than this.
constexpr int kFakeWorkspaceDepth = 40;
constexpr std::size_t kFakeWorkspace = 3000;

}  // namespace starling::tests
