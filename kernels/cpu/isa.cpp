#include "kernels/cpu/isa.h"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/error.h"

namespace starling::cpu {
namespace {
#if defined(__aarch64__)
constexpr bool kNeon = true;
#else
constexpr bool kNeon = false;
#endif
}  // namespace

Isa hardware_isa() {
#if defined(__x86_64__)
  // Everything that -march=x86-64-v3 and -v4 let the compiler use.
  // (Not every compiler knows all of these by name.)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c_movbe =
      __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) && (ecx & bit_MOVBE);
  const bool lzcnt = __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) && (ecx & bit_LZCNT);
  const bool v3 = f16c_movbe && lzcnt && __builtin_cpu_supports("avx2") &&
                  __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? Isa::kAvx512 : v3 ? Isa::kAvx2 : Isa::kScalar;
#elif defined(__aarch64__)
  return Isa::kAvx2;  // NEON
#else
  return Isa::kScalar;
#endif
}

Isa detected_isa() {
  const Isa best = hardware_isa();
  const char* wanted = std::getenv("STARLING_CPU_ISA");
  if (!wanted || !*wanted) return best;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (std::string_view(wanted) == name_of(isa)) return std::min(best, isa);
  }
  fail(ExitCode::kUsage, "cpu", "the environment variable STARLING_CPU_ISA is '{}'; allowed: {}",
       wanted, kNeon ? "scalar, neon" : "scalar, avx2, avx512");
}

const char* name_of(Isa isa) {
  if (kNeon && isa != Isa::kScalar) return "neon";
  return isa == Isa::kAvx512 ? "avx512" : isa == Isa::kAvx2 ? "avx2" : "scalar";
}

Bf16Unit bf16_unit() {
#if defined(__x86_64__)
  if (detected_isa() < Isa::kAvx512) return Bf16Unit::kNone;
  // The library's own word: it asks the operating system for AMX, and its environment may lower
  // what it uses.
  const auto effective = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  const auto has = [&](dnnl_cpu_isa_t isa) {
    return (effective & static_cast<unsigned>(isa)) == static_cast<unsigned>(isa);
  };
  return has(dnnl_cpu_isa_avx512_core_amx)    ? Bf16Unit::kTiles
         : has(dnnl_cpu_isa_avx512_core_bf16) ? Bf16Unit::kPairs
                                              : Bf16Unit::kNone;
#else
  return Bf16Unit::kNone;
#endif
}

bool fast_bf16() { return bf16_unit() != Bf16Unit::kNone; }

std::string_view processor_name() {
  static const std::string name = [] {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
      const auto colon = line.find(": ");
      if (line.starts_with("model name") && colon != std::string::npos)
        return line.substr(colon + 2);
    }
    return std::string("unknown processor");
  }();
  return name;
}

std::string library_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace starling::cpu
