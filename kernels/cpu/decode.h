#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/operations/codecs.h"
#include "core/operations/pointwise.h"
#include "kernels/cpu/kernels.h"
#include "kernels/math/codec.h"

// Messages of encoded numbers, part by part: for the decoder, and for updates that decode as they
// go.
namespace starling::cpu {

/// A message's parts: codes, followed by the heads of its blocks.
struct MessageLayout {
  Index n, block, blocks;
  int head;  ///< floats a block
  int bits;  ///< of an element

  MessageLayout(Code code, Index elements, Index block_size)
      : n(elements),
        block(block_size == 0 ? std::max<Index>(elements, 1) : block_size),
        blocks((elements + block - 1) / block),
        head(code == Code::kMinMax8 ? math::MinMax8Code::kHead : math::Int8Code::kHead),
        bits(code == Code::kInt4 ? 4 : 8) {}
  Index size(Index b) const { return std::min(block, n - b * block); }
  template <class Byte>
  auto heads(Byte* message) const {
    return reinterpret_cast<std::conditional_t<std::is_const_v<Byte>, const float*, float*>>(
        message + n * bits / 8);
  }
  /// Of the element, of an even number.
  template <class Byte>
  Byte* codes(Byte* message, Index element) const {
    return message + element * bits / 8;
  }
};

/// What is encoded, in pieces: v = x - minus + residual.
template <class T>
struct Source {
  const Kernels<T>& kernels;
  const T *x, *minus, *residual;

  /// `args`: Encode or SparseEncode.
  template <class Args>
  Source(const Args& args, const Kernels<T>& table)
      : kernels(table),
        x(args.x.template data<T>()),
        minus(args.minus ? args.minus.template data<T>() : nullptr),
        residual(args.residual ? args.residual.template data<T>() : nullptr) {}
  /// v of elements [begin, begin + n): x itself, or in `buffer`.
  const T* numbers(Index begin, Index n, std::vector<T>& buffer) const {
    if (!minus && !residual) return x + begin;
    if (buffer.size() < static_cast<std::size_t>(n)) buffer.resize(static_cast<std::size_t>(n));
    kernels.difference(x + begin, minus ? minus + begin : nullptr,
                       residual ? residual + begin : nullptr, n, buffer.data());
    return buffer.data();
  }
};

/// Sums decoded messages: sum[0 … end - begin - 1] = (0, or with `accumulate` what it is) + Σ
/// weight_k · what message k holds from `begin` on, added in their order.
template <class T>
void sum_decoded(const Kernels<T>& kernels, Code code, const MessageLayout& layout,
                 const std::uint8_t* const* messages, const T* weights, Index terms, Index begin,
                 Index end, bool accumulate, T* sum) {
  if (!accumulate && (code == Code::kNone || terms == 0)) std::fill_n(sum, end - begin, T(0));
  if (code == Code::kNone || code == Code::kBf16) {
    for (Index k = 0; k < terms; ++k) {
      const T* from = reinterpret_cast<const T*>(messages[k]) + begin;
      if (code == Code::kNone)
        kernels.weighted_sum(&from, &weights[k], 1, sum, end - begin, true);
      else
        kernels.decode16(reinterpret_cast<const BFloat16*>(messages[k]) + begin, end - begin,
                         weights[k], accumulate || k > 0, sum);
    }
    return;
  }
  for (Index at = begin; at < end;) {
    const Index b = at / layout.block, last = std::min(end, (b + 1) * layout.block);
    for (Index k = 0; k < terms; k += 2) {  // two at a time, so that the sum waits in registers
      const float* heads[2] = {};
      const std::uint8_t* codes[2] = {};
      const int count = static_cast<int>(std::min<Index>(2, terms - k));
      for (int j = 0; j < count; ++j)
        heads[j] = layout.heads(messages[k + j]) + b * layout.head,
        codes[j] = layout.codes(messages[k + j], at);
      kernels.decode(code, count, heads, codes, last - at, weights + k, accumulate || k > 0,
                     sum + (at - begin));
    }
    at = last;
  }
}

}  // namespace starling::cpu
