#include "tests/cuda/compare.h"

#include "kernels/cpu/cpu_backend.h"

namespace starling::tests {

Backend& plain_cpu() {
  static CpuBackend backend(1, cpu::Isa::kScalar);
  return backend;
}

}  // namespace starling::tests
