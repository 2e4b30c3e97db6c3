#include "core/operations/map_function.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_isa.h"
#include "kernels/math/activations.h"
#include "kernels/math/dropout.h"

namespace starling::cpu::STARLING_ISA {
namespace {

// Elementwise kernels. An output may share memory with an input: every element is read before it is
// written. Intermediate results are computed in blocks that fit the L1 cache.

/// One step of a map: out[i] = function(a[i], b[i]). `out` may be an operand.
template <class T>
static void map_step(MapFunction function, const T* operand_a, const T* operand_b, T* out,
                     Index n) {
  switch (function) {
#define STARLING_MAP_LOOP(name, operands, value)                   \
  case MapFunction::name:                                          \
    STARLING_LOOP for (Index i = 0; i < n; ++i) {                  \
      [[maybe_unused]] const T a = operand_a[i], b = operand_b[i]; \
      out[i] = value;                                              \
    }                                                              \
    break;
    STARLING_MAP_FUNCTIONS(STARLING_MAP_LOOP)
#undef STARLING_MAP_LOOP
  }
}

/// Kernels::map: interprets the steps on one block of elements after another. Step results stay in
/// L1 buffers, or go straight into the output where no conversion is needed. Large outputs are
/// written with streaming stores, which bypass the caches.
template <class T>
static void map(const MapStep* steps, int count, const T* const* in, const Compute<T>* const* wide,
                const Compute<T>* constants, const MapResult<T>* results, int outputs, Index n) {
  using R = Compute<T>;
  constexpr Index kBlock = 512;
  constexpr bool kConverts = kIsLow<T>;  // between the storage type T and R
  alignas(64) R buffer[kMapSlots][kBlock];
  const R* slot[kMapSlots] = {};  // each slot's values for the current block

  static_assert(kMapSlots <= 64);
  std::uint64_t used = 0;  // bit k: some step reads slot k
  const auto binary = [&](int s) { return operands_of(steps[s].function) > 1; };
  for (int s = 0; s < count; ++s) {
    used |= std::uint64_t{1} << steps[s].a;
    if (binary(s)) used |= std::uint64_t{1} << steps[s].b;
  }
  const auto is_used = [&](int k) { return (used >> k & 1) != 0; };
  const auto is_tensor = [&](int k) { return k < kMapTensors && (in[k] || wide[k]); };
  for (int k = 0; k < kMapResults; ++k) {
    if (!is_used(k) || is_tensor(k)) continue;
    for (Index i = 0; i < (n < kBlock ? n : kBlock); ++i) buffer[k][i] = constants[k];
    slot[k] = buffer[k];
  }

  bool streamed[kMapOutputs];
  for (int r = 0; r < outputs; ++r) {
    streamed[r] = streams(results[r].y, n, kBlock);
    // An output in place of an input is in the caches already.
    for (int k = 0; k < kMapTensors; ++k) streamed[r] = streamed[r] && in[k] != results[r].y;
  }

  const auto load_inputs = [&](Index begin, Index size) {
    for (int k = 0; k < kMapTensors; ++k) {
      if (!is_used(k) || !is_tensor(k)) continue;
      if (wide[k]) {
        slot[k] = wide[k] + begin;
      } else if constexpr (kConverts) {
        const T* from = in[k] + begin;
        STARLING_LOOP for (Index i = 0; i < size; ++i) buffer[k][i] = widen(from[i]);
        slot[k] = buffer[k];
      } else {
        slot[k] = in[k] + begin;
      }
    }
  };
  // Prefetches for the next block are spread over the steps: step s fetches inputs s, s + count, …
  const auto prefetch_inputs = [&](int s, Index begin) {
    const Index ahead = begin + 2 * kBlock <= n ? kBlock : 0;
    for (int k = s; k < kMapTensors; k += count)
      if (in[k]) prefetch_range(in[k] + begin + ahead, ahead);
  };
  const auto run_step = [&](int s, Index begin, Index size) {
    R* to = buffer[kMapResults + s];
    if constexpr (!kConverts) {
      for (int r = 0; r < outputs; ++r)
        if (results[r].slot == kMapResults + s && !streamed[r]) to = results[r].y + begin;
    }
    const R* a = slot[steps[s].a];
    const R* b = binary(s) ? slot[steps[s].b] : a;
    map_step(steps[s].function, a, b, to, size);
    slot[kMapResults + s] = to;
  };
  const auto store_output = [&](int r, Index begin, Index size) {
    T* to = results[r].y + begin;
    const R* from = buffer[results[r].slot];
    const bool whole_lines = size * static_cast<Index>(sizeof(T)) % 64 == 0;
    if constexpr (kConverts) {
      pack(to, from, size, streamed[r] && whole_lines);
    } else if (streamed[r] && whole_lines) {
      stream(to, from, size);
    } else if (streamed[r]) {
      for (Index i = 0; i < size; ++i) to[i] = from[i];
    }  // else run_step() has written it
  };

  for (Index begin = 0; begin < n; begin += kBlock) {
    const Index size = n - begin < kBlock ? n - begin : kBlock;
    load_inputs(begin, size);
    for (int s = 0; s < count; ++s) {
      prefetch_inputs(s, begin);
      run_step(s, begin, size);
    }
    for (int r = 0; r < outputs; ++r) store_output(r, begin, size);
  }
  for (int r = 0; r < outputs; ++r)
    if (streamed[r]) return end_stream();
}

template <class T>
static void dropout(const T* x, T* y, Index first, Index n, double p, std::uint64_t key,
                    std::uint64_t counter) {
  const float threshold = static_cast<float>(p);
  const Compute<T> scale = p < 1.0 ? static_cast<Compute<T>>(1.0 / (1.0 - p)) : Compute<T>(0);
  for (Index i = 0; i < n; i += 4) {
    const math::DropoutMask mask =
        math::dropout_mask(key, counter, static_cast<std::uint64_t>((first + i) / 4), threshold);
    const Index count = n - i < 4 ? n - i : 4;
    for (Index j = 0; j < count; ++j)
      y[first + i + j] = narrow<T>(mask.keep[j] ? widen(x[first + i + j]) * scale : Compute<T>(0));
  }
}

template <class T>
static void weighted_sum(const T* const* in, const Compute<T>* weight, int terms, T* out, Index n,
                         bool accumulate) {
  constexpr Index kBlock = 1024;  // partial sums that stay in the L1 cache for all terms
  for (Index begin = 0; begin < n; begin += kBlock) {
    const Index end = begin + kBlock < n ? begin + kBlock : n;
    Compute<T> sum[kBlock];
    for (Index i = 0; i < end - begin; ++i)
      sum[i] = accumulate ? widen(out[begin + i]) : Compute<T>(0);
    for (int k = 0; k < terms; ++k) {
      const T* __restrict from = in[k] + begin;
      const Compute<T> w = weight[k];
      for (Index i = 0; i < end - begin; ++i) sum[i] += w * widen(from[i]);
    }
    for (Index i = 0; i < end - begin; ++i) out[begin + i] = narrow<T>(sum[i]);
  }
}

/// The sum of squares in fp64, in independent lanes so that it vectorises.
template <class T>
static double squares(const T* x, Index n) {
  constexpr Index kLanes = 32;
  double lane[kLanes] = {};
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (Index j = 0; j < kLanes; ++j) {
      const double d = static_cast<double>(widen(x[i + j]));
      lane[j] += d * d;
    }
  }
  double sum = 0.0;
  for (Index j = 0; j < kLanes; ++j) sum += lane[j];
  for (; i < n; ++i) {
    const double d = static_cast<double>(widen(x[i]));
    sum += d * d;
  }
  return sum;
}

static void widen_numbers(const BFloat16* x, float* y, Index n) {
  STARLING_LOOP for (Index i = 0; i < n; ++i) y[i] = widen(x[i]);
}
/// Avoids AVX512_BF16's conversion, which flushes subnormal numbers to zero: casts keep them.
template <class T>
static void narrow_numbers(const float* x, T* y, Index n) {
  narrow_run(y, x, n);
}
static void widen_numbers(const Float16* x, float* y, Index n) {
  Index i = 0;  // F16C where the processor has it: compilers do not vectorise this conversion
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
  for (; i < n; ++i) y[i] = widen(x[i]);
}
template <class T>
static void set(Kernels<T>& table) {
  if constexpr (kIsLow<T>) {
    table.widen = widen_numbers;
    table.narrow = narrow_numbers<T>;
  }
  table.map = map<T>;
  table.dropout = dropout<T>;
  table.weighted_sum = weighted_sum<T>;
  table.squares = squares<T>;
}

}  // namespace

void add_elementwise(AllKernels& all) {
  set(all.fp32), set(all.fp64), set(all.bf16), set(all.fp16);
}

}  // namespace starling::cpu::STARLING_ISA
