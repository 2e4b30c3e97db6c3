#include "comm/transports/rank_order_sum.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/error.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace starling {
namespace {

/// Flush-to-zero and denormals-are-zero for a scope: a sum must give the same bits on whichever
/// thread it runs.
class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  FlushDenormals() {}
#endif
};

/// T: the inputs' type, Total: the sum's.
template <class T, class Total = T>
void sum(const std::byte* const* in, int inputs, std::int64_t count, std::byte* out) {
  constexpr std::int64_t kBlock = 2048;
  alignas(64) Total total[kBlock];  // the output may be an input: it is written last
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t n = std::min(kBlock, count - first);
    const T* start = reinterpret_cast<const T*>(in[0]) + first;
    for (std::int64_t i = 0; i < n; ++i) total[i] = static_cast<Total>(start[i]);
    for (int k = 1; k < inputs; ++k) {
      const T* term = reinterpret_cast<const T*>(in[k]) + first;
      for (std::int64_t i = 0; i < n; ++i) total[i] += static_cast<Total>(term[i]);
    }
    std::memcpy(reinterpret_cast<Total*>(out) + first, total,
                static_cast<std::size_t>(n) * sizeof(Total));
  }
}

template <class T>
void weighted_sum(const std::byte* const* in, const double* weights, int inputs, std::int64_t count,
                  std::byte* out) {
  constexpr std::int64_t kBlock = 2048;
  alignas(64) T total[kBlock];
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t n = std::min(kBlock, count - first);
    for (int k = 0; k < inputs; ++k) {
      const T* term = reinterpret_cast<const T*>(in[k]) + first;
      const T weight = static_cast<T>(weights[k]);
      for (std::int64_t i = 0; i < n; ++i)
        total[i] = k == 0 ? weight * term[i] : total[i] + weight * term[i];
    }
    std::memcpy(reinterpret_cast<T*>(out) + first, total, static_cast<std::size_t>(n) * sizeof(T));
  }
}

}  // namespace

void sum_in_rank_order(DType dtype, const std::byte* const* in, int inputs, std::int64_t count,
                       std::byte* out) {
  require(inputs >= 1, "transport", "a sum needs an input");
  const FlushDenormals scope;
  if (dtype == DType::kFloat32) {
    sum<float>(in, inputs, count, out);
  } else if (dtype == DType::kFloat64) {
    sum<double>(in, inputs, count, out);
  } else if (dtype == DType::kBFloat16) {
    sum<BFloat16, float>(in, inputs, count, out);
  } else {
    fail(ExitCode::kInternal, "transport",
         "sums between ranks are made of fp32, fp64 and bf16, not of {}", name_of(dtype));
  }
}

void weighted_sum_in_order(DType dtype, const std::byte* const* in, const double* weights,
                           int inputs, std::int64_t count, std::byte* out) {
  require(inputs >= 1, "transport", "a sum needs an input");
  const FlushDenormals scope;
  if (dtype == DType::kFloat32) {
    weighted_sum<float>(in, weights, inputs, count, out);
  } else if (dtype == DType::kFloat64) {
    weighted_sum<double>(in, weights, inputs, count, out);
  } else {
    fail(ExitCode::kInternal, "transport",
         "means between ranks are made of fp32 and fp64, not of {}", name_of(dtype));
  }
}

}  // namespace starling
