#include <algorithm>
#include <array>

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
