#pragma once

#include <cstdint>

#include "core/dtype.h"

// What the kernels of a fused update take (update_kernel.h, measure_kernel.h).

namespace starling::cuda {

/// Neighbours, beyond two, whose addresses and weights travel in a launch's parameters (4 KiB at
/// most, and copied by each launch). Those of more go through device memory, by a copy before the
/// launch.
constexpr int kTermsByValue = 16;

/// Scalars of the update that change from step to step.
template <class Step>
struct alignas(16) UpdateScalars {
  using T = typename Step::Real;
  Step step;
  double gradient_scale = 1.0;
  T self_weight = 1;
  T weights[2] = {};  ///< where there are one or two terms; otherwise UpdateTerms say more
};

template <class T>
struct UpdateTerm {
  const void* received = nullptr;  ///< T, or the bytes of a message
  T weight = 0;
};

/// The scalars as a launch's parameter: by value, or in device memory where `from` says so, so that
/// a captured launch stays valid.
template <class Step, int kTerms>
struct UpdateValues {
  UpdateScalars<Step> scalars;
  const UpdateScalars<Step>* from = nullptr;
};
template <class Step, int kTerms>
requires(kTerms < 0) struct UpdateValues<Step, kTerms> {
  using Term = UpdateTerm<typename Step::Real>;
  UpdateScalars<Step> scalars;
  const UpdateScalars<Step>* from = nullptr;
  Term terms[kTermsByValue] = {};
  const Term* terms_from = nullptr;
};

/// A kernel's kTerms where terms are messages of 8-bit codes: what they hold is added up, and the
/// sum mixed with weights[0].
constexpr int kEncodedTerms = -2;
struct EncodedBuffers {
  std::int64_t elements = 0;  ///< of a message
  std::int64_t first = 0;     ///< of a message's numbers, that of x[0]
  std::uint32_t block = 0;    ///< in packs
  bool min_max = false;       ///< MinMax8Code; otherwise Int8Code
};

/// Places of the numbers that an update reads and writes.
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
  const double* factors = nullptr;  ///< and each layer's factor
  std::int64_t packs = 0;           ///< of 16 bytes
  EncodedBuffers encoded;           ///< with kTerms -1 alone
  int terms = 0;
};

}  // namespace starling::cuda
