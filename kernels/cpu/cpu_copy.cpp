#include <algorithm>

#include "core/operations/copying.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Copies by strides: rows of y, which are its last dimension.
namespace starling {

using cpu::Index;

namespace {

/// One row: the places of y that take numbers, and at the others a number, or what is there.
template <class T>
void copy_row(const StridedCopy::Dimension& d, const T* x, T* y, const T* other) {
  if (d.stride == 1 && d.step == 1) {
    if (other) std::fill_n(y, d.begin, *other);
    std::copy_n(x, d.count, y + d.begin);
    if (other) std::fill_n(y + d.begin + d.count, d.size - d.begin - d.count, *other);
    return;
  }
  if (other && !d.is_whole()) std::fill_n(y, d.size, *other);
  for (Index k = 0; k < d.count; ++k) y[d.begin + k * d.step] = x[k * d.stride];
}

}  // namespace

void CpuBackend::issue(const StridedCopy& args) {
  const StridedCopy copy = args.joined();
  const int outer = copy.rank - 1;
  const StridedCopy::Dimension& row = copy.dimensions[static_cast<std::size_t>(outer)];
  const Index rows = row.size == 0 ? 0 : copy.y.elements() / row.size;
  const auto run = [&]<class T>(T) {
    const T* x = reinterpret_cast<const T*>(copy.x.raw()) + copy.first;
    T* y = reinterpret_cast<T*>(copy.y.raw());
    const T number = static_cast<T>(copy.other_bits());
    const T* const other = copy.others ? &number : nullptr;
    threads_.parallel_for(rows, cpu::rows_of_work(row.size), [&](Index begin, Index end) {
      // The coordinates of a row, counted up: a division for each would take as long as the row.
      std::array<Index, Shape::kMaxRank> at{};
      for (Index rest = begin, d = outer - 1; d >= 0; --d) {
        const auto i = static_cast<std::size_t>(d);
        at[i] = rest % copy.dimensions[i].size;
        rest /= copy.dimensions[i].size;
      }
      for (Index r = begin; r < end; ++r) {
        const T* from = x;
        bool inside = true;
        for (std::size_t i = 0; i < static_cast<std::size_t>(outer); ++i) {
          const StridedCopy::Dimension& d = copy.dimensions[i];
          const Index place = at[i] - d.begin, k = d.step == 1 ? place : place / d.step;
          inside = inside && place >= 0 && k * d.step == place && k < d.count;
          from += k * d.stride;
        }
        if (inside) {
          copy_row(row, from, y + r * row.size, other);
        } else if (other) {
          std::fill_n(y + r * row.size, row.size, *other);
        }
        for (int d = outer - 1; d >= 0; --d) {
          const auto i = static_cast<std::size_t>(d);
          if (++at[i] < copy.dimensions[i].size) break;
          at[i] = 0;
        }
      }
    });
  };
  switch (size_of(copy.x.dtype())) {
    case 1: return run(std::uint8_t{});
    case 2: return run(std::uint16_t{});
    case 4: return run(std::uint32_t{});
    default: return run(std::uint64_t{});
  }
}

}  // namespace starling
