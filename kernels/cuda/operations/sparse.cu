#include "core/operations/sparse.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/source.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/codec.h"

// The largest numbers of each block, and back, with the CPU's bits. A block of threads encodes a
// block of numbers: it finds the least chosen |v| digit by digit, lists the places in order, and
// writes codes and residuals.
namespace starling::cuda {
namespace {

constexpr std::size_t kMostMessages = 256;  ///< of a launch, whose arguments are 4 KiB at most
constexpr int kSparseWarps = kThreads / kWarp;

/// A row of SparseLayout::blocks.
struct SparseBlock {
  std::int64_t first, elements, chosen, offset, before;
};

__device__ __forceinline__ unsigned key_of(float v) {
  return std::bit_cast<unsigned>(v) & 0x7fffffffu;
}

/// How many threads before this one have the flag; `all`: how many there are. Called by all threads
/// of the block.
__device__ __forceinline__ int rank_among(bool flag, int* counts, int& all) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned mask = __ballot_sync(0xffffffffu, flag);
  __syncthreads();  // the counts of the last call have been read
  if (lane == 0) counts[warp] = __popc(mask);
  __syncthreads();
  int before = __popc(mask & ((1u << lane) - 1));
  all = 0;
  for (int w = 0; w < kSparseWarps; ++w) {
    before += w < warp ? counts[w] : 0;
    all += counts[w];
  }
  return before;
}

/// A block of threads for each block of numbers: its places, in order, and its largest |v|.
template <class T>
__global__ void __launch_bounds__(kThreads)
    choose_numbers(Source<T> source, const SparseBlock* blocks, std::int32_t* places,
                   float* largest) {
  __shared__ int digits[256], counts[kSparseWarps];
  __shared__ unsigned shared_prefix, shared_left, shared_largest;
  const auto thread = static_cast<int>(threadIdx.x);
  const SparseBlock block = blocks[blockIdx.x];
  const auto n = static_cast<int>(block.elements);
  const auto key_at = [&](int i) {
    return key_of(static_cast<float>(source.number(block.first + i)));
  };
  if (thread == 0) {
    shared_prefix = 0, shared_largest = 0;
    shared_left = static_cast<unsigned>(block.chosen);
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    digits[thread] = 0;
    __syncthreads();
    const unsigned prefix = shared_prefix;
    for (int i = thread; i < n; i += kThreads) {
      const unsigned key = key_at(i);
      if (shift == 24) atomicMax(&shared_largest, key);
      if (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8))
        atomicAdd(&digits[key >> shift & 255u], 1);
    }
    __syncthreads();
    if (thread == 0) {
      unsigned left = shared_left;
      int digit = 255;
      for (; static_cast<unsigned>(digits[digit]) < left; --digit)
        left -= static_cast<unsigned>(digits[digit]);
      shared_prefix = prefix | static_cast<unsigned>(digit) << shift;
      shared_left = left;
    }
    __syncthreads();
  }
  if (thread == 0) largest[blockIdx.x] = std::bit_cast<float>(shared_largest);
  const unsigned least = shared_prefix;  // of the chosen; of those equal to it `equal` are chosen
  const auto equal = static_cast<int>(shared_left);
  std::int32_t* own = places + block.before;
  int base = 0, equal_base = 0;
  for (int start = 0; start < n; start += kThreads) {
    const int i = start + thread;
    const unsigned key = i < n ? key_at(i) : 0u;
    int all = 0;
    const bool is_equal = i < n && key == least;
    const int earlier = equal_base + rank_among(is_equal, counts, all);
    equal_base += all;
    const bool takes = i < n && (key > least || (is_equal && earlier < equal));
    const int rank = base + rank_among(takes, counts, all);
    base += all;
    if (takes) own[rank] = i;
  }
}

/// The message of what was chosen, and the residual. `rests`: scratch for all chosen numbers.
template <class Kind, bool kWide, class T>
__global__ void __launch_bounds__(kThreads)
    encode_chosen(Source<T> source, const SparseBlock* blocks, const std::int32_t* places,
                  const float* largest, T* rests, std::uint8_t* message) {
  const auto thread = static_cast<int>(threadIdx.x);
  const SparseBlock block = blocks[blockIdx.x];
  const auto n = static_cast<int>(block.elements), chosen = static_cast<int>(block.chosen);
  const std::int32_t* own = places + block.before;
  const float most = largest[blockIdx.x];
  const Kind code = Kind::of(-most, most);
  if (thread == 0) reinterpret_cast<float*>(message)[blockIdx.x] = code.scale;
  std::uint8_t* to = message + block.offset;
  if constexpr (kWide) {
    for (int i = thread; i < chosen; i += kThreads) {
      to[2 * i] = static_cast<std::uint8_t>(own[i]);
      to[2 * i + 1] = static_cast<std::uint8_t>(own[i] >> 8);
    }
  } else {
    for (int i = 2 * thread; i < chosen; i += 2 * kThreads) {
      const int first = own[i], second = i + 1 < chosen ? own[i + 1] : 0;
      std::uint8_t* pair = to + i / 2 * 3;
      pair[0] = static_cast<std::uint8_t>(first);
      pair[1] = static_cast<std::uint8_t>(first >> 8 | second << 4);
      if (i + 1 < chosen) pair[2] = static_cast<std::uint8_t>(second >> 4);
    }
  }
  to += math::place_bytes(kWide, chosen);
  constexpr int kEach = 8 / Kind::kBits;
#pragma unroll 1  // several divisions at a time do not fit the registers
  for (int i = kEach * thread; i < chosen; i += kEach * kThreads) {
    unsigned byte = 0;
    for (int k = 0; k < kEach && i + k < chosen; ++k) {
      const T v = source.number(block.first + own[i + k]);
      const std::uint8_t q = code.encode(static_cast<float>(v));
      byte |= static_cast<unsigned>(q) << (k * Kind::kBits);
      rests[block.before + i + k] = source.decay * (v - static_cast<T>(code.decode(q)));
    }
    to[i / kEach] = static_cast<std::uint8_t>(byte);
  }
  if (!source.residual) return;
  __syncthreads();
  for (int i = thread; i < n; i += kThreads)
    source.residual[block.first + i] = source.decay * source.number(block.first + i);
  __syncthreads();
  for (int i = thread; i < chosen; i += kThreads)
    source.residual[block.first + own[i]] = rests[block.before + i];
}

struct SparseMessages {
  const std::uint8_t* of[kMostMessages];
  float weights[kMostMessages];
  int count;
};

/// Where a message's block has the place; -1: it was not sent.
template <bool kWide>
__device__ __forceinline__ int find_place(const std::uint8_t* places, int chosen, int place) {
  int low = 0, high = chosen;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (math::place_at(places, kWide, middle) < place) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < chosen && math::place_at(places, kWide, low) == place ? low : -1;
}

/// A block of threads for each block of numbers; `out` is zero. The first message that holds a
/// place adds up what all hold there. `of_all`: the sum of all weights if means are over that, or
/// 0. `sums`: of launches that each have a part of the messages, the weights of places so far; out
/// has their sums. Else null.
template <class Kind, bool kWide, class T>
__global__ void __launch_bounds__(kThreads)
    decode_sparse(SparseMessages messages, const SparseBlock* blocks, float of_all, T* out,
                  float* sums) {
  const SparseBlock block = blocks[blockIdx.x];
  const auto chosen = static_cast<int>(block.chosen);
  const std::int64_t codes = block.offset + math::place_bytes(kWide, block.chosen);
  for (int m = 0; m < messages.count; ++m) {
    const std::uint8_t* own = messages.of[m] + block.offset;
    for (int at = static_cast<int>(threadIdx.x); at < chosen; at += kThreads) {
      const int place = math::place_at(own, kWide, at);
      bool first = place < block.elements;  // one out of range must not write elsewhere
      for (int k = 0; k < m && first; ++k)
        first = find_place<kWide>(messages.of[k] + block.offset, chosen, place) < 0;
      if (!first) continue;
      const std::int64_t i = block.first + place;
      T sum = sums ? out[i] : T(0);
      float weights = sums ? sums[i] : 0.0f;
#pragma unroll 1  // more at a time do not fit the registers
      for (int k = m; k < messages.count; ++k) {
        const std::uint8_t* message = messages.of[k];
        const int found = k == m ? at : find_place<kWide>(message + block.offset, chosen, place);
        if (found < 0) continue;
        const Kind code = Kind::from(reinterpret_cast<const float*>(message) + blockIdx.x);
        const float c = code.decode(math::code_at<Kind>(message + codes, found));
        sum += static_cast<T>(messages.weights[k]) * static_cast<T>(c);
        weights += messages.weights[k];
      }
      out[i] = sums ? sum : sum / static_cast<T>(of_all > 0.0f ? of_all : weights);
      if (sums) sums[i] = weights;
    }
  }
}

template <class T>
__global__ void divide_sums(std::int64_t n, const float* sums, float of_all, T* out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n && sums[i] > 0.0f) out[i] = out[i] / static_cast<T>(of_all > 0.0f ? of_all : sums[i]);
}

const SparseBlock* blocks_of(const SparseLayout& layout) {
  static_assert(sizeof(SparseBlock) == SparseLayout::kFields * sizeof(std::int64_t));
  return reinterpret_cast<const SparseBlock*>(layout.blocks.data<std::int64_t>());
}

}  // namespace

void CudaBackend::issue(const SparseEncode& args) {
  const SparseLayout& layout = args.layout;
  if (layout.count == 0) return;
  const auto run = [&](auto type) {
    using T = decltype(type);
    const auto source = source_of<T>(args);
    const SparseBlock* blocks = blocks_of(layout);
    const Tensor places = scratch(layout.chosen, DType::kInt32),
                 largest = scratch(layout.count, DType::kFloat32),
                 rests = scratch(layout.chosen, args.x.dtype());
    const Launch how{{static_cast<unsigned>(layout.count)}, {kThreads}, handle()};
    launch(choose_numbers<T>, how, source, blocks, places.data<std::int32_t>(),
           largest.data<float>());
    math::with_value_code(layout.value_bits, [&](auto kind) {
      using Kind = decltype(kind);
      launch(layout.wide() ? encode_chosen<Kind, true, T> : encode_chosen<Kind, false, T>, how,
             source, blocks, places.data<std::int32_t>(), largest.data<float>(), rests.data<T>(),
             args.message.data<std::uint8_t>());
    });
  };
  args.x.dtype() == DType::kFloat32 ? run(float{}) : run(double{});
}

void CudaBackend::issue(const SparseDecode& args) {
  const SparseLayout& layout = args.layout;
  fill(args.out, 0.0);
  if (layout.count == 0) return;
  const std::size_t all = args.messages.size();
  const auto of_all = static_cast<float>(args.sum_of_all());
  Tensor sums;
  if (all > kMostMessages) {
    sums = scratch(layout.elements, DType::kFloat32);
    fill(sums, 0.0);
  }
  float* const weights = sums ? sums.data<float>() : nullptr;
  const auto run = [&](auto type) {
    using T = decltype(type);
    T* const out = args.out.data<T>();
    for (std::size_t first = 0; first < all; first += kMostMessages) {
      SparseMessages messages{};
      for (std::size_t m = first; m < std::min(all, first + kMostMessages); ++m) {
        messages.weights[messages.count] = args.weight(m);
        messages.of[messages.count++] = args.messages[m].data<std::uint8_t>();
      }
      math::with_value_code(layout.value_bits, [&](auto kind) {
        using Kind = decltype(kind);
        launch(layout.wide() ? decode_sparse<Kind, true, T> : decode_sparse<Kind, false, T>,
               {{static_cast<unsigned>(layout.count)}, {kThreads}, handle()}, messages,
               blocks_of(layout), of_all, out, weights);
      });
    }
    if (sums)
      launch(divide_sums<T>,
             {{static_cast<unsigned>((layout.elements + kThreads - 1) / kThreads)},
              {kThreads},
              handle()},
             layout.elements, weights, of_all, out);
  };
  args.out.dtype() == DType::kFloat32 ? run(float{}) : run(double{});
}

}  // namespace starling::cuda
