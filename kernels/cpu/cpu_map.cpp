#include <algorithm>

#include "core/operations/map.h"
#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/cpu/map_rows.h"

// Maps: all of y at once where nothing is repeated, else rows of places.
namespace starling {

using cpu::Index;

void CpuBackend::issue(const Map& args) {
  const MapLayout layout = layout_of(args, args.y.shape(), args.y);
  const cpu::MapWalk rows(layout, [](std::size_t) { return true; });
  const Index length = layout.size[static_cast<std::size_t>(layout.rank - 1)];
  if (length == 0) return;
  floating(args.y, [&](auto type) {
    using T = decltype(type);
    using Operands = cpu::MapOperands<T>;
    T* y = args.y.data<T>();
    if (rows.count() == 1) {
      return threads_.parallel_for(length, cpu::kElementGrain, [&](Index begin, Index end) {
        Operands operands(args, layout, *allocator_);
        cpu::MapBlock block{.length = end - begin};
        for (std::size_t k = 0; k < block.first.size(); ++k)
          block.first[k] = begin * layout.stride[k][0];
        operands.take(block);
        operands.run(kernels<T>(), block, y + begin);
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
        operands.run(kernels<T>(), block, y + r * length);
      }
    });
  });
}

}  // namespace starling
