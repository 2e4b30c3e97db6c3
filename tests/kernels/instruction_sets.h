#pragma once

#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace starling::tests {

/// Instruction sets that this machine has.
inline std::vector<cpu::Isa> instruction_sets() {
  std::vector<cpu::Isa> result;
  for (const cpu::Isa isa : {cpu::Isa::kScalar, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (isa <= cpu::hardware_isa()) result.push_back(isa);
  }
  return result;
}

}  // namespace starling::tests
