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
    const T* x = args.x.data<T>();
    auto* message = args.message.data<std::uint8_t>();
    const Index n = args.x.elements();
    if (args.code == Code::kNone) {
      return threads_.parallel_for(n, kElementGrain, [&](Index begin, Index end) {
        std::memcpy(message + begin * Index{sizeof(T)}, x + begin,
                    static_cast<std::size_t>(end - begin) * sizeof(T));
      });
    }
    if (args.code == Code::kBf16) {
      auto* codes = reinterpret_cast<BFloat16*>(message);
      return threads_.parallel_for(n, kElementGrain, [&](Index begin, Index end) {
        kernels<T>().encode16(x + begin, end - begin, codes + begin);
      });
    }
    const bool min_max = args.code == Code::kMinMax8;
    const MessageLayout layout(args.code, n, args.block);
    const auto of_block = [&](Index b, Index begin, Index end, float least, float most) {
      const Index first = b * layout.block;
      kernels<T>().encode8(min_max, least, most, x + first + begin, end - begin,
                           message + first + begin,
                           begin == 0 ? layout.heads(message) + b * layout.head : nullptr);
    };
    constexpr float kNone = std::numeric_limits<float>::infinity();
    const Index grain = cpu::rows_of_work(layout.block);
    if (layout.block <= kElementGrain) {
      return threads_.parallel_for(layout.blocks, grain, [&](Index begin, Index end) {
        // Blocks processed together, to hide the latency of ranges; all stay in the L1 cache
        constexpr Index kTogether = 8;
        float least[kTogether], most[kTogether];
        for (Index first = begin; first < end; first += kTogether) {
          const Index count = std::min(kTogether, end - first);
          std::fill_n(least, count, kNone), std::fill_n(most, count, -kNone);
          for (Index k = 0; k < count; ++k) {
            kernels<T>().range(min_max, x + (first + k) * layout.block, layout.size(first + k),
                               least + k, most + k);
          }
          for (Index k = 0; k < count; ++k)
            of_block(first + k, 0, layout.size(first + k), least[k], most[k]);
        }
      });
    }
    for (Index b = 0; b < layout.blocks; ++b) {  // long ones: threads share each
      const Index pieces = (layout.size(b) + kElementGrain - 1) / kElementGrain;
      std::vector<float> least(static_cast<std::size_t>(pieces), kNone),
          most(static_cast<std::size_t>(pieces), -kNone);
      const auto in_pieces = [&](auto&& f) {
        threads_.parallel_for(pieces, 1, [&](Index begin, Index end) {
          for (Index p = begin; p < end; ++p)
            f(p, p * kElementGrain, std::min(layout.size(b), (p + 1) * kElementGrain));
        });
      };
      in_pieces([&](Index p, Index begin, Index end) {
        const auto at = static_cast<std::size_t>(p);
        kernels<T>().range(min_max, x + b * layout.block + begin, end - begin, &least[at],
                           &most[at]);
      });
      float low = kNone, high = -kNone;
      for (std::size_t p = 0; p < least.size(); ++p) {  // NaN stays
        low = least[p] < low || std::isnan(least[p]) ? least[p] : low;
        high = most[p] > high || std::isnan(most[p]) ? most[p] : high;
        if (std::isnan(low)) break;
      }
      in_pieces([&](Index, Index begin, Index end) { of_block(b, begin, end, low, high); });
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
