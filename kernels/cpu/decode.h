#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/math/codec.h"

// Messages of encoded numbers, part by part: for the decoder, and for updates that decode as they go.
namespace starling::cpu {

/// A message's parts: codes, and behind them the heads of its blocks.
struct MessageLayout {
  Index n, block, blocks;
  int head;  ///< floats a block

  MessageLayout(Code code, Index elements, Index block_size)
      : n(elements),
        block(block_size == 0 ? std::max<Index>(elements, 1) : block_size),
        blocks((elements + block - 1) / block),
        head(code == Code::kMinMax8 ? math::MinMax8Code::kHead : math::Int8Code::kHead) {}
  Index size(Index b) const { return std::min(block, n - b * block); }
  template <class Byte>
  auto heads(Byte* message) const {
    return reinterpret_cast<std::conditional_t<std::is_const_v<Byte>, const float*, float*>>(message + n);
  }
};

/// sum[0 … end - begin - 1] += weight · what the message holds from `begin` on.
template <class T>
void add_decoded(const Kernels<T>& kernels, Code code, const MessageLayout& layout, const std::uint8_t* message, T weight, Index begin,
                 Index end, T* sum) {
  if (code == Code::kNone) {
    const T* from = reinterpret_cast<const T*>(message) + begin;
    return kernels.weighted_sum(&from, &weight, 1, sum, end - begin, true);
  }
  if (code == Code::kBf16) return kernels.decode16(reinterpret_cast<const BFloat16*>(message) + begin, end - begin, weight, sum);
  for (Index at = begin; at < end;) {
    const Index b = at / layout.block, last = std::min(end, (b + 1) * layout.block);
    kernels.decode8(code == Code::kMinMax8, layout.heads(message) + b * layout.head, message + at, last - at, weight, sum + (at - begin));
    at = last;
  }
}

}  // namespace starling::cpu
