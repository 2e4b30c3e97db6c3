#pragma once

#include <optional>
#include <string_view>

#include "core/backend.h"
#include "core/dtype.h"

namespace starling {

/// Rates that no program on a device exceeds: what a large copy and a large matrix product reach
/// there.
struct Ceilings {
  std::string_view device;        ///< a word of its name
  double bytes_per_second = 0.0;  ///< read and written
  double low_flops = 0.0;         ///< bf16 and fp16 with fp32 sums
  double fp32_flops = 0.0, tf32_flops = 0.0, fp64_flops = 0.0;

  double flops(DType compute, bool tf32) const;
};

/// Copy and bf16 as measured; tf32 half of bf16, fp32 and fp64 from the public specifications. The
/// first is taken where no device is asked.
inline constexpr Ceilings kCeilings[] = {
    {"H200", 4.3e12, 790e12, 67e12, 395e12, 67e12},
    {"H100", 3.0e12, 798e12, 67e12, 399e12, 67e12},
};

/// Ceilings of the device of this name, or of a description that begins with it. Other boards of
/// the same chip (PCIe, NVL) and parts of a GPU (MIG) are slower: they have none.
std::optional<Ceilings> known_ceilings(std::string_view device);

/// Seconds that so many products of square matrices take: the fastest of some runs.
double product_seconds(Backend& backend, DType compute, std::int64_t side, int calls, int runs = 5);

/// Ceilings measured now: what a copy of so many bytes and a product of square matrices reach on
/// this device; the product stands for all types of numbers.
Ceilings measured_ceilings(Backend& backend, DType compute,
                           std::int64_t copy_bytes = std::int64_t{1} << 30,
                           std::int64_t side = 8192);

}  // namespace starling
