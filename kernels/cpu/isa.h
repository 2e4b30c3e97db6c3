#pragma once

#include <string_view>

namespace starling::cpu {

/// Instruction sets that own kernels are compiled for; each is compiled into the namespace of its
/// name.
///
/// A file named `*_isa.cpp` in kernels/cpu (or given to the CMake function starling_isa_sources) is
/// compiled three times, with STARLING_ISA defined as `scalar` (baseline), `avx2` (x86-64-v3) and
/// `avx512` (x86-64-v4). Such a file puts everything into `namespace starling::cpu::STARLING_ISA`
/// and may use only static and always_inline functions besides it: any other inline function or
/// template (std:: too) could be taken by the linker from the AVX-512 objects and then run on an
/// older machine. On ARM64 `avx2` and `avx512` stand for NEON, which every such processor has: the
/// same loops and the compiler's own vectors; and `scalar` is compiled without. Elsewhere the three
/// copies are the same.
enum class Isa : int { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

/// The best set that this processor and operating system run.
Isa hardware_isa();

/// hardware_isa(), or less where the environment variable STARLING_CPU_ISA says the name of
/// another. Throws Error(kUsage) if it says anything else.
Isa detected_isa();

/// "scalar", "avx2" or "avx512"; on ARM64 "scalar" or "neon".
const char* name_of(Isa isa);

/// Whether oneDNN multiplies bf16 numbers in hardware (AMX or AVX512_BF16) here, so that training
/// in bf16 is faster than in fp32. False where STARLING_CPU_ISA lowers the instruction set.
bool fast_bf16();

/// Name of what multiplies bf16 numbers: "AMX", "AVX512_BF16", or "nothing" where fast_bf16() is
/// false.
std::string_view bf16_unit();

/// The processor's own name, e.g. "AMD EPYC 7763 64-Core Processor".
std::string_view processor_name();

/// The copy for `isa` among the three of a function table (or function pointer).
template <class T>
const T& select_isa(Isa isa, const T& scalar_copy, const T& avx2_copy, const T& avx512_copy) {
  return isa == Isa::kAvx512 ? avx512_copy : isa == Isa::kAvx2 ? avx2_copy : scalar_copy;
}

}  // namespace starling::cpu

/// Declares something (a function that returns a table, say) in the namespaces of all three copies.
#define STARLING_DECLARE_PER_ISA(...) \
  namespace starling::cpu::scalar {   \
  __VA_ARGS__                         \
  }                                   \
  namespace starling::cpu::avx2 {     \
  __VA_ARGS__                         \
  }                                   \
  namespace starling::cpu::avx512 {   \
  __VA_ARGS__                         \
  }
