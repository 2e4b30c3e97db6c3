#include <algorithm>
#include <vector>

#include "core/operations/sparse.h"
#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/cpu/decode.h"
#include "kernels/math/codec.h"

// The largest numbers of each block, and back.
namespace starling {

using cpu::Index;

namespace {

/// A row of SparseLayout::blocks.
struct SparseBlock {
  Index first, elements, chosen, offset, before;
};
const SparseBlock* blocks_of(const SparseLayout& layout) {
  static_assert(sizeof(SparseBlock) == SparseLayout::kFields * sizeof(std::int64_t));
  return reinterpret_cast<const SparseBlock*>(layout.blocks.data<std::int64_t>());
}

void put_places(const std::uint16_t* places, Index count, bool wide, std::uint8_t* to) {
  for (Index i = 0; i < count && wide; ++i) {
    to[2 * i] = static_cast<std::uint8_t>(places[i]);
    to[2 * i + 1] = static_cast<std::uint8_t>(places[i] >> 8);
  }
  for (Index i = 0; i < count && !wide; i += 2, to += 3) {
    const unsigned first = places[i], second = i + 1 < count ? places[i + 1] : 0u;
    to[0] = static_cast<std::uint8_t>(first);
    to[1] = static_cast<std::uint8_t>(first >> 8 | second << 4);
    if (i + 1 < count) to[2] = static_cast<std::uint8_t>(second >> 4);
  }
}

}  // namespace

void CpuBackend::issue(const SparseEncode& args) {
  const auto run = [&](auto type) {
    using T = decltype(type);
    const cpu::Kernels<T>& kernels = this->kernels<T>();
    const cpu::Source<T> source(args, kernels);
    T* residual = args.residual ? args.residual.data<T>() : nullptr;
    const T decay = static_cast<T>(args.decay);
    auto* message = args.message.data<std::uint8_t>();
    const SparseLayout& layout = args.layout;
    const SparseBlock* blocks = blocks_of(layout);
    threads_.parallel_for(
        layout.count, cpu::rows_of_work(layout.block), [&](Index begin, Index end) {
          const auto most = static_cast<std::size_t>(layout.block);
          // What is chosen is written by whole vectors
          constexpr std::size_t kMore = 16;
          std::vector<T> buffer, values(most + kMore), left(most);
          std::vector<std::int32_t> keys(most + kMore);
          std::vector<std::uint16_t> places(most + kMore);
          std::int32_t guess = 0;
          for (Index b = begin; b < end; ++b) {
            const SparseBlock& block = blocks[b];
            const T* v = source.numbers(block.first, block.elements, buffer);
            const float largest = kernels.choose(v, block.elements, block.chosen, keys.data(),
                                                 guess, places.data(), values.data());
            std::uint8_t* to = message + block.offset;
            put_places(places.data(), block.chosen, layout.wide(), to);
            reinterpret_cast<float*>(message)[b] = kernels.encode_values(
                layout.value_bits, largest, values.data(), block.chosen,
                to + math::place_bytes(layout.wide(), block.chosen), left.data(), decay);
            if (!residual) continue;
            T* rest = residual + block.first;
            kernels.weighted_sum(&v, &decay, 1, rest, block.elements, false);
            for (Index k = 0; k < block.chosen; ++k)
              rest[places[static_cast<std::size_t>(k)]] = left[static_cast<std::size_t>(k)];
          }
        });
  };
  threads_.enter();
  args.x.dtype() == DType::kFloat32 ? run(float{}) : run(double{});
}

void CpuBackend::issue(const SparseDecode& args) {
  const auto run = [&](auto type) {
    using T = decltype(type);
    const SparseLayout& layout = args.layout;
    const SparseBlock* blocks = blocks_of(layout);
    const cpu::Kernels<T>& kernels = this->kernels<T>();
    T* out = args.out.data<T>();
    if (layout.count == 0) std::fill_n(out, layout.elements, T(0));
    const T all = static_cast<T>(args.sum_of_all());
    threads_.parallel_for(
        layout.count, cpu::rows_of_work(layout.block), [&](Index begin, Index end) {
          std::vector<T> weights(static_cast<std::size_t>(layout.block));
          for (Index b = begin; b < end; ++b) {
            const SparseBlock& block = blocks[b];
            // This block, and what is in no part up to the next one or the end.
            const Index from = b == 0 ? 0 : block.first,
                        to = b + 1 == layout.count ? layout.elements : blocks[b + 1].first;
            std::fill_n(out + from, to - from, T(0));
            std::fill_n(weights.data(), block.elements, T(0));
            T* sum = out + block.first;
            for (std::size_t m = 0; m < args.messages.size(); ++m) {
              const auto* message = args.messages[m].template data<std::uint8_t>();
              const std::uint8_t* places = message + block.offset;
              kernels.add_values(layout.value_bits, reinterpret_cast<const float*>(message)[b],
                                 places + math::place_bytes(layout.wide(), block.chosen), places,
                                 layout.wide(), block.chosen, block.elements - 1,
                                 static_cast<T>(args.weight(m)), sum, weights.data());
            }
            kernels.divide_sums(sum, weights.data(), all, block.elements);
          }
        });
  };
  threads_.enter();
  args.out.dtype() == DType::kFloat32 ? run(float{}) : run(double{});
}

}  // namespace starling
