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

}  // namespace

void CpuBackend::issue(const SparseEncode& args) {
  const auto run = [&](auto type) {
    using T = decltype(type);
    const cpu::Kernels<T>& kernels = this->kernels<T>();
    const T* x = args.x.data<T>();
    const T* minus = args.minus ? args.minus.data<T>() : nullptr;
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
          std::vector<T> numbers(most + kMore), values(most + kMore), left(most);
          std::vector<std::uint16_t> places(most + kMore);
          std::int32_t guess = 0;
          for (Index b = begin; b < end; ++b) {
            const SparseBlock& block = blocks[b];
            T* rest = residual ? residual + block.first : nullptr;
            const float largest = kernels.choose(
                x + block.first, minus ? minus + block.first : nullptr, rest, decay, block.elements,
                block.chosen, guess, numbers.data(), places.data(), values.data());
            std::uint8_t* to = message + block.offset;
            kernels.put_places(places.data(), block.chosen, layout.wide(), to);
            reinterpret_cast<float*>(message)[b] = kernels.encode_values(
                layout.value_bits, largest, values.data(), block.chosen,
                to + math::place_bytes(layout.wide(), block.chosen), left.data(), decay);
            for (Index k = 0; rest && k < block.chosen; ++k)
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
          std::vector<T> sums(2 * static_cast<std::size_t>(layout.block));
          for (Index b = begin; b < end; ++b) {
            const SparseBlock& block = blocks[b];
            // This block, and what is in no part up to the next one or the end.
            const Index from = b == 0 ? 0 : block.first,
                        to = b + 1 == layout.count ? layout.elements : blocks[b + 1].first;
            std::fill_n(out + from, block.first - from, T(0));
            std::fill(out + block.first + block.elements, out + to, T(0));
            for (std::size_t m = 0; m < args.messages.size(); ++m) {
              const auto* message = args.messages[m].template data<std::uint8_t>();
              const std::uint8_t* places = message + block.offset;
              kernels.add_values(layout.value_bits, reinterpret_cast<const float*>(message)[b],
                                 places + math::place_bytes(layout.wide(), block.chosen), places,
                                 layout.wide(), block.chosen, block.elements - 1,
                                 static_cast<T>(args.weight(m)), sums.data());
            }
            kernels.take_means(sums.data(), all, block.elements, out + block.first);
          }
        });
  };
  threads_.enter();
  args.out.dtype() == DType::kFloat32 ? run(float{}) : run(double{});
}

}  // namespace starling
