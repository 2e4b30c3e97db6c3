#include <array>

#include "core/operations/map.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Maps: all of y at once where nothing is repeated, else runs of places along its last dimension.
namespace starling {

using cpu::Index;

namespace {

/// Operands of one run.
template <class T>
struct MapRun {
  using R = Compute<T>;
  std::array<const T*, kMapTensors> in{};
  std::array<const R*, kMapTensors> wide{};
  std::array<R, kMapResults> constants{};

  /// Slot k is the tensor from this element on, or that element alone.
  void begin(std::size_t k, const Tensor& tensor, Index element, bool repeated) {
    const bool is_wide = cpu::kIsLow<T> && tensor.dtype() != DTypeOf<T>::value;
    if (repeated) {
      constants[k] = is_wide ? tensor.data<R>()[element] : cpu::widen(tensor.data<T>()[element]);
    } else if (is_wide) {
      wide[k] = tensor.data<R>() + element;
    } else {
      in[k] = tensor.data<T>() + element;
    }
  }
};

}  // namespace

void CpuBackend::issue(const Map& args) {
  const MapLayout layout = layout_of(args);
  const auto outer = static_cast<std::size_t>(layout.rank - 1);
  const Index length = layout.size[outer], runs = length == 0 ? 0 : args.y.elements() / length;
  floating(args.y, [&](auto type) {
    using T = decltype(type);
    MapRun<T> first;
    for (std::size_t i = 0; i < args.numbers.size(); ++i)
      first.constants[kMapNumbers + i] = static_cast<Compute<T>>(args.numbers[i]);
    // `n` places of the run at these coordinates, from place `along` of it on.
    const auto issue_run = [&](MapRun<T>& run, const std::array<Index, Shape::kMaxRank>& at,
                               Index along, T* y, Index n) {
      for (std::size_t k = 0; k < args.in.size() && args.in[k]; ++k) {
        Index element = layout.stride[k][outer] * along;
        for (std::size_t d = 0; d < outer; ++d) element += at[d] * layout.stride[k][d];
        run.begin(k, args.in[k], element, layout.stride[k][outer] == 0);
      }
      kernels<T>().map(args.steps.data(), args.count, run.in.data(), run.wide.data(),
                       run.constants.data(), y, n);
    };
    T* y = args.y.data<T>();
    if (runs == 1) {
      return threads_.parallel_for(length, cpu::kElementGrain, [&](Index begin, Index end) {
        MapRun<T> run = first;
        issue_run(run, {}, begin, y + begin, end - begin);
      });
    }
    threads_.parallel_for(runs, cpu::rows_of_work(length), [&](Index begin, Index end) {
      std::array<Index, Shape::kMaxRank> at{};
      Index rest = begin;
      for (std::size_t d = outer; d-- > 0; rest /= layout.size[d]) at[d] = rest % layout.size[d];
      MapRun<T> run = first;
      for (Index r = begin; r < end; ++r) {
        issue_run(run, at, 0, y + r * length, length);
        for (std::size_t d = outer; d-- > 0; at[d] = 0) {
          if (++at[d] < layout.size[d]) break;
        }
      }
    });
  });
}

}  // namespace starling
