#pragma once

#include <string>
#include <string_view>

namespace starling::cpu {

/// Instruction sets that kernels are compiled for.
///
/// A file named `*_isa.cpp` in kernels/cpu (or passed to the CMake function starling_isa_sources)
/// is compiled three times, with STARLING_ISA defined as `scalar` (baseline), `avx2` (x86-64-v3)
/// and `avx512` (x86-64-v4). Such a file must put everything into `namespace
/// starling::cpu::STARLING_ISA`, and apart from that use only static and always_inline functions:
/// for any other inline function or template (also of std::) the linker might choose the AVX-512
/// copy, which crashes on older machines. On ARM64 `avx2` and `avx512` are both NEON, by automatic
/// vectorisation. `scalar` is without it everywhere.
enum class Isa : int { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

/// The best set that this processor and operating system support.
Isa hardware_isa();

/// hardware_isa(), or the lower one named by the environment variable STARLING_CPU_ISA. Throws
/// Error(kUsage) if it has another value.
Isa detected_isa();

/// "scalar", "avx2" or "avx512"; on ARM64 "scalar" or "neon".
const char* name_of(Isa isa);

/// What multiplies bf16 in hardware: nothing, vectors of pairs (AVX512_BF16), or tiles (AMX; its
/// processors take twice as long for pairs as for fp32, 117 and 235 GFLOP/s a core of a Xeon).
/// Nothing if STARLING_CPU_ISA lowers the instruction set; oneDNN's DNNL_MAX_CPU_ISA counts, too.
enum class Bf16Unit : int { kNone, kPairs, kTiles };
Bf16Unit bf16_unit();
/// Whether training in bf16 is faster than in fp32.
bool fast_bf16();

/// The processor's own name, e.g. "AMD EPYC 7763 64-Core Processor".
std::string_view processor_name();

/// "oneDNN 2.6.3".
std::string library_version();

/// Selects the copy of a function table (or function pointer) for `isa`.
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
