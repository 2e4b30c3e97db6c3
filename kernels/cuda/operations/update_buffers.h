#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/operations/code.h"

// What the kernels of a fused update take (update_kernel.h, measure_kernel.h).

namespace starling::cuda {

/// Up to this many neighbours, addresses and weights are passed in the launch's parameters, which
/// are limited to 4 KiB. With more they are copied to device memory before the launch.
constexpr int kTermsByValue = 16;

/// Scalars of the update that change from step to step.
template <class Step>
struct alignas(16) UpdateScalars {
  using T = typename Step::Real;
  Step step;
  double gradient_scale = 1.0;
  T self_weight = 1;
  T weights[2] = {};  ///< of one or two terms; with more they are in UpdateTerm
};

template <class T>
struct UpdateTerm {
  const void* received = nullptr;  ///< elements of type T, or an encoded message
  T weight = 0;
};

/// The scalars as a launch parameter: by value, or in device memory if `device_scalars` is set, so
/// that a launch captured in a graph can get new values. `device_terms` likewise.
template <class Step, int kTerms>
struct UpdateValues {
  UpdateScalars<Step> scalars;
  const UpdateScalars<Step>* device_scalars = nullptr;
};
template <class Step, int kTerms>
requires(kTerms < 0) struct UpdateValues<Step, kTerms> {
  using Term = UpdateTerm<typename Step::Real>;
  UpdateScalars<Step> scalars;
  const UpdateScalars<Step>* device_scalars = nullptr;
  Term terms[kTermsByValue] = {};
  const Term* device_terms = nullptr;
};

/// kTerms of kernels whose terms are messages of 8-bit codes: the sum of their decoded elements is
/// mixed in with weights[0].
constexpr int kEncodedTerms = -2;
struct EncodedBuffers {
  std::int64_t elements = 0;  ///< per message
  std::int64_t first = 0;     ///< the message's element that belongs to x[0]
  std::uint32_t block = 0;    ///< elements that share a scale, in packs
  Code code = Code::kInt8;    ///< of 8 or 4 bits
};

/// Addresses of the arrays that an update reads and writes.
template <class T>
struct UpdateBuffers {
  const T* x = nullptr;
  T* x_out = nullptr;  ///< may be x
  const T* gradient = nullptr;
  T* states[4] = {};
  const T* received[2] = {};
  const std::uint8_t* decay = nullptr;
  const double* control = nullptr;  ///< optional: {factor, skip}
  BFloat16* low_bf16 = nullptr;     ///< optional, one of them
  Float16* low_fp16 = nullptr;
  /// The layer of each 32 elements, for a rule that measures layers
  const std::int32_t* owner = nullptr;
  const double* factors = nullptr;  ///< one per layer
  std::int64_t packs = 0;           ///< of 16 bytes
  EncodedBuffers encoded;           ///< for kEncodedTerms
  int terms = 0;
};

}  // namespace starling::cuda
