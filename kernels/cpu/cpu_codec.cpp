#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/operations/codecs.h"
#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/cpu/decode.h"

// Numbers in fewer bytes, and back.
namespace starling {

using cpu::Index;
using cpu::kElementGrain;

using cpu::MessageLayout;

void CpuBackend::issue(const Encode& args) {
  const auto run = [&](auto type) {
    using T = decltype(type);
    const cpu::Kernels<T>& kernels = this->kernels<T>();
    const cpu::Source<T> source(args, kernels);
    auto* message = args.message.data<std::uint8_t>();
    T* rest = args.residual ? args.residual.data<T>() : nullptr;
    const T decay = static_cast<T>(args.decay);
    const Index n = args.x.elements();
    const MessageLayout layout(args.code, n, args.block);
    constexpr Index kPiece = 1024;  // stays in the first cache
    if (args.code == Code::kNone || args.code == Code::kBf16) {
      return threads_.parallel_for(n, kElementGrain, [&](Index from, Index to) {
        std::vector<T> buffer;
        for (Index begin = from; begin < to; begin += kPiece) {
          const Index count = std::min(kPiece, to - begin);
          const T* v = source.numbers(begin, count, buffer);
          if (args.code == Code::kNone)
            std::copy_n(v, count, reinterpret_cast<T*>(message) + begin);
          else
            kernels.encode16(v, count, reinterpret_cast<BFloat16*>(message) + begin);
          if (!rest) continue;
          const std::uint8_t* from = message;
          const T minus_one = T(-1), *left = buffer.data();
          cpu::sum_decoded(kernels, args.code, layout, &from, &minus_one, 1, begin, begin + count,
                           true, buffer.data());
          kernels.weighted_sum(&left, &decay, 1, rest + begin, count, false);
        }
      });
    }
    const bool min_max = args.code == Code::kMinMax8;
    // Encodes elements [begin, begin + count) of block b, v.
    const auto of_block = [&](Index b, Index begin, Index count, const T* v, float least,
                              float most) {
      const Index at = b * layout.block + begin;
      kernels.encode(args.code, least, most, v, count, layout.codes(message, at),
                     begin == 0 ? layout.heads(message) + b * layout.head : nullptr,
                     rest ? rest + at : nullptr, decay);
    };
    constexpr float kNone = std::numeric_limits<float>::infinity();
    if (layout.block <= kElementGrain) {
      // Blocks processed together, to hide the latency of ranges; all stay in the L1 cache
      constexpr Index kTogether = 8;
      return threads_.parallel_for(
          layout.blocks, cpu::rows_of_work(layout.block), [&](Index begin, Index end) {
            float least[kTogether], most[kTogether];
            std::vector<T> buffer;
            const Index together = std::clamp<Index>(4 * kPiece / layout.block, 1, kTogether);
            for (Index first = begin; first < end; first += together) {
              const Index count = std::min(together, end - first), at = first * layout.block,
                          elements = std::min(n, (first + count) * layout.block) - at;
              const T* v = source.numbers(at, elements, buffer);
              std::fill_n(least, count, kNone), std::fill_n(most, count, -kNone);
              for (Index k = 0; k < count; ++k) {
                kernels.range(min_max, v + k * layout.block, layout.size(first + k), least + k,
                              most + k);
              }
              for (Index k = 0; k < count; ++k) {
                // Encoding computes on what is in the cache: memory fetches the next blocks
                for (Index i = 0; i < layout.block * Index{sizeof(T)}; i += 64)
                  __builtin_prefetch(
                      reinterpret_cast<const char*>(source.x + at + elements + k * layout.block) +
                      i);
                of_block(first + k, 0, layout.size(first + k), v + k * layout.block, least[k],
                         most[k]);
              }
            }
          });
    }
    for (Index b = 0; b < layout.blocks; ++b) {  // long ones: threads share each
      const Index pieces = (layout.size(b) + kElementGrain - 1) / kElementGrain;
      std::vector<float> least(static_cast<std::size_t>(pieces), kNone),
          most(static_cast<std::size_t>(pieces), -kNone);
      const auto in_pieces = [&](auto&& f) {
        threads_.parallel_for(pieces, 1, [&](Index first, Index last) {
          std::vector<T> buffer;
          for (Index p = first; p < last; ++p) {
            const Index begin = p * kElementGrain,
                        count = std::min(layout.size(b) - begin, kElementGrain);
            f(p, begin, count, source.numbers(b * layout.block + begin, count, buffer));
          }
        });
      };
      in_pieces([&](Index p, Index, Index count, const T* v) {
        const auto at = static_cast<std::size_t>(p);
        kernels.range(min_max, v, count, &least[at], &most[at]);
      });
      float low = kNone, high = -kNone;
      for (std::size_t p = 0; p < least.size(); ++p) {  // NaN stays
        low = least[p] < low || std::isnan(least[p]) ? least[p] : low;
        high = most[p] > high || std::isnan(most[p]) ? most[p] : high;
        if (std::isnan(low)) break;
      }
      in_pieces([&](Index, Index begin, Index count, const T* v) {
        of_block(b, begin, count, v, low, high);
      });
    }
  };
  threads_.enter();
  args.x.dtype() == DType::kFloat32 ? run(float{}) : run(double{});
}

void CpuBackend::issue(const Decode& args) {
  const auto run = [&](auto type) {
    using T = decltype(type);
    T* out = args.out.data<T>();
    const Index n = args.out.elements();
    const MessageLayout layout(args.code, n, args.block);
    std::vector<const std::uint8_t*> messages;
    std::vector<T> weights;
    for (std::size_t k = 0; k < static_cast<std::size_t>(args.terms); ++k) {
      messages.push_back(args.messages[k].template data<std::uint8_t>());
      weights.push_back(static_cast<T>(args.weight[k]));
    }
    const T divisor = static_cast<T>(args.divisor);
    constexpr Index kPiece = 1024;  // stays in the first cache while the messages go over it
    threads_.parallel_for(n, kElementGrain, [&](Index from, Index to) {
      for (Index begin = from; begin < to; begin += kPiece) {
        const Index end = std::min(to, begin + kPiece);
        T* sum = out + begin;
        cpu::sum_decoded(kernels<T>(), args.code, layout, messages.data(), weights.data(),
                         args.terms, begin, end, args.accumulate, sum);
        for (Index i = 0; args.divisor != 1.0 && i < end - begin; ++i) sum[i] = sum[i] / divisor;
      }
    });
  };
  threads_.enter();
  args.out.dtype() == DType::kFloat32 ? run(float{}) : run(double{});
}

}  // namespace starling
