#pragma once

namespace starling {

/// `starling-bench kernels`: single operations of the CPU backend at ResNet-20's shapes (batch 128). Operations that only move memory are
/// set against a copy of as many bytes in the same run, convolutions and matrix products against the fastest matrix product of the run.
/// Prints a table, or one JSON object. Returns the exit status.
int bench_kernels(int threads, int repeats, bool json);

}  // namespace starling
