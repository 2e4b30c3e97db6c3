#include <algorithm>

#include "core/operations/indexing.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Rows of a table by number, and back. On the way back the positions are sorted by row, so that one
// thread writes each row of the table once, and adds in the order of the positions: the bits do not
// depend on the number of threads.
namespace starling {

using cpu::Index;

namespace {

/// A number outside the table is the data's fault.
const std::int32_t* checked(const Tensor& index, Index rows) {
  const std::int32_t* number = index.data<std::int32_t>();
  for (Index i = 0; i < index.elements(); ++i) {
    if (number[i] < 0 || number[i] >= rows) {
      fail(ExitCode::kUsage, "data",
           "the number {} at position {} of a batch lies outside the table's {} rows", number[i], i,
           rows);
    }
  }
  return number;
}

/// For each of `outer`, adjacent columns are summed together.
constexpr Index kSums = 16384;  ///< that are gathered at once

template <class T, class Y>
void add_numbers(const IndexedRows& at, const std::int32_t* index, const T* x, Y* y, Index outer,
                 Index first, Index width, bool accumulate, double* sums) {
  Y* const to = y + outer * at.rows * at.columns + first;
  // All columns are one line.
  const Index lines = width == at.columns ? 1 : at.rows, line = at.rows / lines * width;
  for (Index r = 0; r < lines; ++r) {
    for (Index c = 0; c < line; ++c)
      sums[r * line + c] =
          accumulate ? static_cast<double>(cpu::widen(to[r * at.columns + c])) : 0.0;
  }
  for (Index i = 0; i < at.n; ++i) {
    const Index from = (outer * at.n + i) * at.columns + first;
    for (Index c = 0; c < width; ++c)
      sums[index[from + c] * width + c] += static_cast<double>(cpu::widen(x[from + c]));
  }
  for (Index r = 0; r < lines; ++r) {
    for (Index c = 0; c < line; ++c)
      to[r * at.columns + c] = cpu::narrow<Y>(static_cast<Compute<Y>>(sums[r * line + c]));
  }
}

}  // namespace

void CpuBackend::issue(const Gather& args) {
  const IndexedRows at(args.x, args.index, args.y);
  const std::int32_t* index = checked(args.index, at.rows);
  const Index width = at.width();
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    threads_.parallel_for(at.named(), cpu::rows_of_work(width), [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i)
        std::copy_n(x + at.row(index, i) * width, width, y + i * width);
    });
  });
}

void CpuBackend::issue(const ScatterAdd& args) {
  const IndexedRows at(args.y, args.index, args.x);
  const std::int32_t* index = checked(args.index, at.rows);
  const auto with_types = [&](const auto& add) {
    floating(args.x, [&](auto type) {
      if (args.y.dtype() == args.x.dtype())
        add(type, type);
      else
        add(type, Compute<decltype(type)>{});
    });
  };
  if (at.each && at.rows > 0) {
    const Index most = std::clamp<Index>(kSums / at.rows, 1, std::max<Index>(1, at.columns)),
                pieces = (at.columns + most - 1) / most;
    return with_types([&](auto type, auto result) {
      const auto* x = args.x.data<decltype(type)>();
      auto* y = args.y.data<decltype(result)>();
      threads_.parallel_for(at.outer * pieces, cpu::rows_of_work((at.rows + at.n) * most),
                            [&](Index begin, Index end) {
                              const cpu::Workspace<double> sums(*allocator_, at.rows * most);
                              for (Index p = begin; p < end; ++p) {
                                const Index first = p % pieces * most;
                                add_numbers(at, index, x, y, p / pieces, first,
                                            std::min(most, at.columns - first), args.accumulate,
                                            sums.data());
                              }
                            });
    });
  }
  const Index n = at.named(), rows = at.all(), width = at.width();
  // ends[row] becomes where the row's positions end in `order`; they begin where those of the row
  // before end.
  const cpu::Workspace<Index> ends_memory(*allocator_, rows + 1), order_memory(*allocator_, n);
  Index* ends = ends_memory.data();
  Index* order = order_memory.data();
  std::fill_n(ends, rows + 1, Index{0});
  for (Index i = 0; i < n; ++i) ++ends[at.row(index, i) + 1];
  for (Index row = 0; row < rows; ++row) ends[row + 1] += ends[row];
  for (Index i = 0; i < n; ++i) order[ends[at.row(index, i)]++] = i;
  const auto add = [&](auto type, auto result) {
    using T = decltype(type);
    using Y = decltype(result);
    const T* x = args.x.data<T>();
    Y* y = args.y.data<Y>();
    threads_.parallel_for(rows, cpu::rows_of_work(width), [&](Index begin, Index end) {
      const cpu::Workspace<double> sum_memory(*allocator_, width);
      double* sum = sum_memory.data();
      for (Index row = begin; row < end; ++row) {
        Y* to = y + row * width;
        for (Index c = 0; c < width; ++c)
          sum[c] = args.accumulate ? static_cast<double>(cpu::widen(to[c])) : 0.0;
        for (Index k = row == 0 ? 0 : ends[row - 1]; k < ends[row]; ++k) {
          const T* from = x + order[k] * width;
          for (Index c = 0; c < width; ++c) sum[c] += static_cast<double>(cpu::widen(from[c]));
        }
        for (Index c = 0; c < width; ++c) to[c] = cpu::narrow<Y>(static_cast<Compute<Y>>(sum[c]));
      }
    });
  };
  with_types(add);
}

}  // namespace starling
