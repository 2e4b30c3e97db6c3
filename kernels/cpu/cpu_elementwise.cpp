#include <algorithm>
#include <array>

#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"
#include "core/operations/updates.h"
#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/cpu/map_rows.h"
#include "kernels/math/gradient_factor.h"

// Sums, dropout, casts, and maps: all of y at once where nothing is repeated, else rows of places.
namespace starling {

using cpu::Index;
using cpu::kElementGrain;

void CpuBackend::issue(const Dropout& args) {
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    threads_.parallel_for(args.x.elements(), 4096, [&](Index begin, Index end) {
      kernels<T>().dropout(x, y, begin, end - begin, args.p, args.key, args.counter);
    });
  });
}

void CpuBackend::issue(const WeightedSum& args) {
  floating(args.out, [&](auto type) {
    using T = decltype(type);
    const Index n = args.out.elements();
    T* out = args.out.data<T>();
    std::array<const T*, 8> in{};
    std::array<Compute<T>, 8> weight{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(args.terms); ++i) {
      in[i] = args.in[i].data<T>();
      weight[i] = static_cast<Compute<T>>(args.weight[i]);
    }
    threads_.parallel_for(n, kElementGrain, [&](Index begin, Index end) {
      std::array<const T*, 8> from{};
      for (std::size_t i = 0; i < static_cast<std::size_t>(args.terms); ++i)
        from[i] = in[i] + begin;
      kernels<T>().weighted_sum(from.data(), weight.data(), args.terms, out + begin, end - begin,
                                args.accumulate);
    });
  });
}

void CpuBackend::issue(const GradientControl& args) {
  const double* totals = args.totals.data<double>() + args.first;
  double sum = 0.0;
  for (Index i = 0; i < args.count; ++i) sum += totals[i];
  double* control = args.control.data<double>();
  const math::GradientFactor result =
      math::gradient_factor(sum, args.scale, args.clip, args.check_finite);
  control[0] = result.factor;
  control[1] = result.skip;
}

void CpuBackend::issue(const SquaredNorms& args) {
  if (args.x.empty()) return;
  fill(args.results(), 0.0);
  for (std::size_t i = 0; i < args.x.size(); ++i) {
    reduce(
        Reduce::squared_distance(args.x[i], {}, args.totals, args.first + static_cast<Index>(i)));
  }
}

namespace {

template <class To>
To rounded(double value) {
  if constexpr (std::is_same_v<To, double> || std::is_same_v<To, float>) {
    return static_cast<To>(value);
  } else {
    return To(static_cast<float>(value));
  }
}

template <class From, class To>
void cast_numbers(const cpu::Threads& threads, const Tensor& x, const Tensor& y) {
  const From* from = x.data<From>();
  To* to = y.data<To>();
  threads.parallel_for(x.elements(), kElementGrain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      if constexpr (std::is_same_v<From, double> || std::is_same_v<From, std::int32_t>) {
        to[i] = rounded<To>(static_cast<double>(from[i]));
      } else if constexpr (std::is_same_v<To, double>) {
        to[i] = static_cast<double>(static_cast<float>(from[i]));
      } else {
        to[i] = To(static_cast<float>(from[i]));
      }
    }
  });
}

template <class From>
void cast_from(const cpu::Threads& threads, const Tensor& x, const Tensor& y) {
  dispatch_floating(y.dtype(), [&](auto to) { cast_numbers<From, decltype(to)>(threads, x, y); });
}

}  // namespace

void CpuBackend::issue(const Cast& args) {
  // Denormal numbers of 16-bit types are values like any other; a cast must keep them, so this does
  // not enter().
  const auto between = [&](auto low) {
    using T = decltype(low);
    const Index n = args.x.elements();
    if (args.x.dtype() == DType::kFloat32) return narrow(args.x.data<float>(), args.y.data<T>(), n);
    threads_.parallel_for(n, kElementGrain, [&](Index begin, Index end) {
      kernels<T>().widen(args.x.data<T>() + begin, args.y.data<float>() + begin, end - begin);
    });
  };
  const auto is_between = [&](DType low) {
    return (args.x.dtype() == low && args.y.dtype() == DType::kFloat32) ||
           (args.y.dtype() == low && args.x.dtype() == DType::kFloat32);
  };
  if (is_between(DType::kBFloat16)) return between(BFloat16());
  if (is_between(DType::kFloat16)) return between(Float16());
  if (args.x.dtype() == DType::kUInt8) return cast_from<std::uint8_t>(threads_, args.x, args.y);
  if (args.x.dtype() == DType::kInt32) return cast_from<std::int32_t>(threads_, args.x, args.y);
  dispatch_floating(args.x.dtype(),
                    [&](auto from) { cast_from<decltype(from)>(threads_, args.x, args.y); });
}

void CpuBackend::issue(const Map& args) {
  const MapLayout layout = layout_of(args, args.y.shape(), args.y);
  const cpu::MapWalk rows(layout, [](std::size_t) { return true; });
  const Index length = layout.size[static_cast<std::size_t>(layout.rank - 1)];
  if (length == 0) return;
  floating(args.y, [&](auto type) {
    using T = decltype(type);
    using Operands = cpu::MapOperands<T>;
    using Results = std::array<cpu::MapResult<T>, kMapOutputs>;
    Results all{{{args.y.data<T>(), kMapResults + args.count - 1}}};
    std::size_t outputs = 1;
    for (const Map::Also& other : args.also)
      if (other.y) all[outputs++] = {other.y.data<T>(), other.slot};
    const auto run = [&](const Operands& operands, const cpu::MapBlock& block, Index first) {
      Results here = all;
      for (std::size_t r = 0; r < outputs; ++r) here[r].y += first;
      operands.run(kernels<T>(), block, {here.data(), outputs});
    };
    if (rows.count() == 1) {
      return threads_.parallel_for(length, cpu::kElementGrain, [&](Index begin, Index end) {
        Operands operands(args, layout, *allocator_);
        cpu::MapBlock block{.length = end - begin};
        for (std::size_t k = 0; k < block.first.size(); ++k)
          block.first[k] = begin * layout.stride[k][0];
        operands.take(block);
        run(operands, block, begin);
      });
    }
    const Index together = std::max<Index>(1, Operands::kRoom / length);
    threads_.parallel_for(rows.count(), cpu::rows_of_work(length), [&](Index begin, Index end) {
      Operands operands(args, layout, *allocator_);
      cpu::MapBlock block{.step = rows.step(), .length = length};
      for (Index r = begin; r < end; r += block.rows) {
        block.first = rows.at(r);
        block.rows = std::min({together, end - r, rows.run(r)});
        operands.take(block);
        run(operands, block, r * length);
      }
    });
  });
}

}  // namespace starling
