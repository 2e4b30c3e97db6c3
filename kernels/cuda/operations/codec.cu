#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "core/operations/codecs.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/decode.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/source.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/codec.h"

// Numbers in fewer bytes, and back, with the CPU's bits. A warp encodes a block: it reads the
// numbers for their range and once more, from the caches, to write the codes. Decoding is
// elementwise over several messages at once.
namespace starling::cuda {
namespace {

constexpr int kMost = 8;  ///< messages

template <class T>
struct Messages {
  const std::uint8_t* of[kMost];
  T weight[kMost];
  int terms;
};

/// The range of what `threads` threads, of which this is `thread`, find in n numbers; each its own
/// part.
template <class T>
__device__ void own_range(const Source<T>& source, Index first, Index n, int thread, int threads,
                          float& least, float& most) {
  bool none = false;
  for (Index i = Index{thread} * kCodeGroup; i < n; i += Index{threads} * kCodeGroup) {
    T value[kCodeGroup];
    source.load_group(first + i, value);
#pragma unroll
    for (int k = 0; k < kCodeGroup; ++k) {
      const float v = static_cast<float>(value[k]);
      least = v < least ? v : least;
      most = v > most ? v : most;
      none = none || v != v;
    }
  }
  if (none) least = most = std::numeric_limits<float>::quiet_NaN();
}
/// NaN where one of them is.
__device__ __forceinline__ void join_ranges(float low, float high, float& least, float& most) {
  least = low < least || low != low ? low : least;
  most = high > most || high != high ? high : most;
}
__device__ __forceinline__ void range_of_warp(float& least, float& most) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const float low = __shfl_xor_sync(0xffffffffu, least, lanes),
                high = __shfl_xor_sync(0xffffffffu, most, lanes);
    join_ranges(low, high, least, most);
  }
}

template <class Kind, class T>
__device__ __forceinline__ void encode_group(const Kind& code, const Source<T>& source, Index i,
                                             std::uint8_t* codes) {
  T value[kCodeGroup], decoded[kCodeGroup];
  source.load_group(i, value);
  std::uint8_t result[kCodeGroup];
#pragma unroll
  for (int k = 0; k < kCodeGroup; ++k) {
    result[k] = code.encode(static_cast<float>(value[k]));
    decoded[k] = static_cast<T>(code.decode(result[k]));
  }
  detail::store_codes<Kind::kBits>(result, codes + i * Kind::kBits / 8);
  source.keep_rest(i, value, decoded);
}

/// Codes of each number by itself: bf16, or whole numbers.
template <bool kHalf, class T>
__global__ void __launch_bounds__(kThreads)
    encode_each(Source<T> source, Index n, std::uint8_t* message) {
  const Index threads = Index{gridDim.x} * kThreads;
  for (Index i = (Index{blockIdx.x} * kThreads + threadIdx.x) * kCodeGroup; i < n;
       i += threads * kCodeGroup) {
    T value[kCodeGroup], decoded[kCodeGroup];
    source.load_group(i, value);
    if constexpr (kHalf) {
      std::uint16_t bits[kCodeGroup];
#pragma unroll
      for (int k = 0; k < kCodeGroup; ++k) {
        const auto half = narrow<BFloat16>(static_cast<float>(value[k]));
        bits[k] = std::bit_cast<std::uint16_t>(half);
        decoded[k] = static_cast<T>(widen(half));
      }
      detail::store_codes<16>(bits, message + i * 2);
    } else {
#pragma unroll
      for (int k = 0; k < kCodeGroup; ++k) decoded[k] = value[k];
      store<kCodeGroup>(value, reinterpret_cast<T*>(message) + i);
    }
    source.keep_rest(i, value, decoded);
  }
}

/// A warp for each block.
template <class Kind, class T>
__global__ void __launch_bounds__(kThreads)
    encode_blocks(Source<T> source, Index n, Index block, Index blocks, std::uint8_t* codes,
                  float* heads) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Index warps = Index{gridDim.x} * (kThreads / kWarp);
  for (Index b = Index{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp; b < blocks;
       b += warps) {
    const Index first = b * block, size = first + block < n ? block : n - first;
    float least = std::numeric_limits<float>::infinity(), most = -least;
    own_range(source, first, size, lane, kWarp, least, most);
    range_of_warp(least, most);
    const Kind code = Kind::of(least, most);
    if (lane == 0) code.put(heads + b * Kind::kHead);
    for (Index i = Index{lane} * kCodeGroup; i < size; i += Index{kWarp} * kCodeGroup)
      encode_group(code, source, first + i, codes);
  }
}

/// One block of threads finds a long block's range and leaves it in the head; encode_long() makes
/// the code of it and the codes. Long blocks are there for messages that are to be as others' are;
/// one of them is read by one multiprocessor.
template <class T>
__global__ void __launch_bounds__(kThreads)
    range_of_long(Source<T> source, Index first, Index n, float* range) {
  __shared__ float low[kThreads / kWarp], high[kThreads / kWarp];
  float least = std::numeric_limits<float>::infinity(), most = -least;
  own_range(source, first, n, static_cast<int>(threadIdx.x), kThreads, least, most);
  range_of_warp(least, most);
  if (threadIdx.x % kWarp == 0) low[threadIdx.x / kWarp] = least, high[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / kWarp; ++w) join_ranges(low[w], high[w], least, most);
  range[0] = least, range[1] = most;
}
template <class Kind, class T>
__global__ void __launch_bounds__(kThreads)
    encode_long(Source<T> source, Index first, Index n, const float* range, std::uint8_t* codes,
                float* head) {
  const Kind code = Kind::of(range[0], range[1]);
  if (blockIdx.x == 0 && threadIdx.x == 0) code.put(head);
  const Index threads = Index{gridDim.x} * kThreads;
  for (Index i = (Index{blockIdx.x} * kThreads + threadIdx.x) * kCodeGroup; i < n;
       i += threads * kCodeGroup)
    encode_group(code, source, first + i, codes);
}

template <class Kind, class T>
__global__ void __launch_bounds__(kThreads)
    decode_all(Messages<T> messages, Index n, Index block, T divisor, bool accumulate, T* out) {
  const Index threads = Index{gridDim.x} * kThreads;
  for (Index i = (Index{blockIdx.x} * kThreads + threadIdx.x) * kCodeGroup; i < n;
       i += threads * kCodeGroup) {
    T sum[kCodeGroup] = {};
    if (accumulate) load<kCodeGroup>(out + i, sum);
#pragma unroll
    // The loop is unrolled: arguments that are found by a number are copied to memory
    for (int m = 0; m < kMost; ++m) {
      if (m >= messages.terms) break;
      Kind::add(messages.of[m], n, i, i / block, messages.weight[m], sum);
    }
    if (divisor != T(1)) {
#pragma unroll
      for (int k = 0; k < kCodeGroup; ++k) sum[k] = sum[k] / divisor;
    }
    store<kCodeGroup>(sum, out + i);
  }
}

template <class F>
void of_type(const Tensor& numbers, F&& f) {
  numbers.dtype() == DType::kFloat32 ? f(float{}) : f(double{});
}
unsigned grid_for(Index n) { return blocks_for((n + kCodeGroup - 1) / kCodeGroup, kThreads, 1); }

}  // namespace

void CudaBackend::issue(const Encode& args) {
  const Index n = args.x.elements();
  if (n == 0) return;
  auto* message = args.message.data<std::uint8_t>();
  require(packable(args.x.raw(), args.minus ? args.minus.raw() : nullptr,
                   args.residual ? args.residual.raw() : nullptr, args.message.raw()),
          "cuda", "encode: the numbers and the message must begin at a multiple of 16 bytes");
  of_type(args.x, [&](auto type) {
    using T = decltype(type);
    const auto source = source_of<T>(args);
    if (args.code == Code::kNone || args.code == Code::kBf16)
      return launch(args.code == Code::kBf16 ? encode_each<true, T> : encode_each<false, T>,
                    {{grid_for(n)}, {kThreads}, handle()}, source, n, message);
    math::with_code(args.code, [&](auto kind) {
      using Kind = decltype(kind);
      auto* heads = reinterpret_cast<float*>(message + n * Kind::kBits / 8);
      constexpr Index kLong = 65536;
      const Index block = args.block == 0 ? n : args.block, blocks = (n + block - 1) / block;
      if (block <= kLong) {
        return launch(encode_blocks<Kind, T>,
                      {{blocks_for(blocks, kThreads / kWarp, 1)}, {kThreads}, handle()}, source, n,
                      block, blocks, message, heads);
      }
      const Tensor range(*this, Shape{2}, DType::kFloat32);
      for (Index b = 0; b < blocks; ++b) {
        const Index first = b * block, size = std::min(block, n - first);
        launch(range_of_long<T>, {{1}, {kThreads}, handle()}, source, first, size,
               range.data<float>());
        launch(encode_long<Kind, T>, {{grid_for(size)}, {kThreads}, handle()}, source, first, size,
               range.data<float>(), message, heads + b * Kind::kHead);
      }
    });
  });
}

void CudaBackend::issue(const Decode& args) {
  const Index n = args.out.elements();
  if (n == 0) return;
  of_type(args.out, [&](auto type) {
    using T = decltype(type);
    T* out = args.out.data<T>();
    Messages<T> messages{};
    messages.terms = args.terms;
    bool aligned = packable(out);
    for (int k = 0; k < args.terms; ++k) {
      const Tensor& message = args.messages[static_cast<std::size_t>(k)];
      messages.of[k] = message.data<std::uint8_t>();
      messages.weight[k] = static_cast<T>(args.weight[static_cast<std::size_t>(k)]);
      aligned = aligned && packable(messages.of[k]);
    }
    require(aligned, "cuda",
            "decode: the numbers and the messages must begin at a multiple of 16 bytes");
    const Index block = args.block == 0 ? n : args.block;
    const auto with = [&](auto kind) {
      launch(decode_all<decltype(kind), T>, {{grid_for(n)}, {kThreads}, handle()}, messages, n,
             block, static_cast<T>(args.divisor), args.accumulate, out);
    };
    switch (args.code) {
      case Code::kNone: return with(detail::WholeMessage{});
      case Code::kBf16: return with(detail::HalfMessage{});
      case Code::kInt8: return with(detail::CodedMessage<math::Int8Code>{});
      case Code::kMinMax8: return with(detail::CodedMessage<math::MinMax8Code>{});
      case Code::kInt4: return with(detail::CodedMessage<math::Int4Code>{});
    }
  });
}

}  // namespace starling::cuda
