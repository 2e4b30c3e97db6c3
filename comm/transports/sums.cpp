#include "comm/transports/sums.h"

#include <cstring>
#include <numeric>

#include "core/error.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace starling {
namespace {

/// Sets flush-to-zero and denormals-are-zero in a scope, so that a sum gives the same bits on any
/// thread.
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

/// T: type of the inputs, Total: type of the sum. Without weights all are 1.
template <class T, class Total = T>
void sum(const std::byte* const* in, const double* weights, int inputs, std::int64_t count,
         std::byte* out) {
  constexpr std::int64_t kBlock = 2048;
  alignas(64) Total total[kBlock];  // the output may be an input: it is written last
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t n = std::min(kBlock, count - first);
    for (int k = 0; k < inputs; ++k) {
      const T* term = reinterpret_cast<const T*>(in[k]) + first;
      const auto weight = static_cast<Total>(weights ? weights[k] : 1.0);
      for (std::int64_t i = 0; i < n; ++i) {
        const Total weighted = weight * static_cast<Total>(term[i]);
        total[i] = k == 0 ? weighted : total[i] + weighted;
      }
    }
    std::memcpy(reinterpret_cast<Total*>(out) + first, total,
                static_cast<std::size_t>(n) * sizeof(Total));
  }
}

}  // namespace

void sum_in_order(DType dtype, const std::vector<const std::byte*>& in, const double* weights,
                  std::int64_t count, std::byte* out) {
  require(!in.empty(), "transport", "a sum needs an input");
  const FlushDenormals scope;
  const int inputs = static_cast<int>(in.size());
  if (dtype == DType::kFloat32) {
    sum<float>(in.data(), weights, inputs, count, out);
  } else if (dtype == DType::kFloat64) {
    sum<double>(in.data(), weights, inputs, count, out);
  } else if (dtype == DType::kBFloat16) {
    sum<BFloat16, float>(in.data(), weights, inputs, count, out);
  } else {
    fail(ExitCode::kInternal, "transport",
         "sums between ranks are made of fp32, fp64 and bf16, not of {}", name_of(dtype));
  }
}

void encode_bf16(const float* in, std::int64_t count, std::byte* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const BFloat16 rounded(in[i]);
    std::memcpy(out + 2 * i, &rounded, 2);
  }
}

void decode_bf16(const std::byte* in, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    BFloat16 rounded;
    std::memcpy(&rounded, in + 2 * i, 2);
    const auto value = static_cast<float>(rounded);
    std::memcpy(reinterpret_cast<std::byte*>(out) + 4 * i, &value, 4);
  }
}

std::vector<double> node_weights(const Exchange& exchange) {
  std::vector<double> weights{exchange.own_share};
  if (exchange.bf16_between) {
    const double moved = std::accumulate(exchange.shares.begin(), exchange.shares.end(), 0.0);
    weights = {exchange.own_share + moved, -moved};
  }
  weights.insert(weights.end(), exchange.shares.begin(), exchange.shares.end());
  in_node_order(exchange, weights);
  return weights;
}

}  // namespace starling
