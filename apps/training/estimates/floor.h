#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/training/config/train_config.h"
#include "apps/training/tasks/training_pass.h"
#include "core/backend.h"
#include "core/dtype.h"
#include "core/operations/updates.h"
#include "kernels/optimizer.h"

namespace starling {

/// What no program on a device exceeds: rates of a large copy and a large matrix product, memory.
struct Ceilings {
  std::string_view device;        ///< a word of its name
  double bytes_per_second = 0.0;  ///< read and written
  double low_flops = 0.0;         ///< bf16 and fp16 with fp32 sums
  double fp32_flops = 0.0, tf32_flops = 0.0, fp64_flops = 0.0;
  double memory = 0.0;  ///< bytes, as CUDA tells them

  double flops(DType compute, bool tf32) const;
};

/// Copy and bf16 as measured; tf32 half of bf16, fp32 and fp64 from the public specifications. The
/// first is taken where no device is asked.
inline constexpr Ceilings kCeilings[] = {
    {"H200", 4.3e12, 790e12, 67e12, 395e12, 67e12, 150.1e9},
    {"H100", 3.0e12, 798e12, 67e12, 399e12, 67e12, 84.9e9},
};

/// Ceilings of the device of this name, or of a description that begins with it. Other boards of
/// the same chip (PCIe, NVL) and parts of a GPU (MIG) are slower: they have none.
std::optional<Ceilings> known_ceilings(std::string_view device);

/// Seconds that `calls` products of square matrices take: the fastest of some runs.
double product_seconds(Backend& backend, DType compute, std::int64_t side, int calls);

/// What a copy of that size and a product of square matrices reach on this device now.
Ceilings measured_ceilings(Backend& backend, DType compute,
                           std::int64_t copy_bytes = std::int64_t{1} << 30,
                           std::int64_t side = 8192);

/// The fused update: the rule's own bytes, `received` neighbours, and a low-precision copy if any.
OperationWork count_update(const OptimizerRule& rule, double parameters, double received,
                           DType dtype, DType compute);

/// Work of a rule with whole matrices in a bucket of these layers, counted from what it issues on
/// shapes. It is products and all else that comes after the pass over single numbers (Muon). A rule
/// that does the whole update in steps of its own (Adafactor) has its bytes in that pass already:
/// its arithmetic is added to `pass`, which is count_update()'s.
std::vector<OperationWork> count_matrices(const OptimizerRule& rule,
                                          const std::vector<LayerExtent>& layers, DType dtype,
                                          OperationWork& pass);

/// A step on a device: the passes of its micro-batches, and the update of `parameters` numbers,
/// with what each parameter's own rule does with whole matrices, in the parameters' type.
std::vector<OperationWork> count_step(const TrainConfig& config,
                                      const std::vector<OperationWork>& pass, double parameters,
                                      double received, const Ceilings& device);

struct Floor {
  double bytes = 0.0, flops = 0.0;
  double memory_seconds = 0.0;      ///< the bytes alone
  double arithmetic_seconds = 0.0;  ///< the arithmetic alone
  /// Operations one after another, each as fast as the slower of its two
  double seconds = 0.0;
  bool memory_bound() const { return memory_seconds >= arithmetic_seconds; }
};
Floor floor_of(const std::vector<OperationWork>& work, double flops_per_second,
               double bytes_per_second);

}  // namespace starling
