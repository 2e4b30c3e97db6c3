#include <algorithm>

#include "core/operations/indexing.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Rows of a table by number, and back. On the way back the positions are sorted by token, so that
// one thread writes each row of the table once, and adds in the order of the positions: the bits do
// not depend on the number of threads.
namespace starling {

using cpu::Index;

namespace {

/// A token outside the table is the data's fault.
const std::int32_t* checked_tokens(const Tensor& tokens, Index rows) {
  const std::int32_t* token = tokens.data<std::int32_t>();
  for (Index i = 0; i < tokens.elements(); ++i) {
    if (token[i] < 0 || token[i] >= rows) {
      fail(ExitCode::kUsage, "data",
           "the token {} at position {} of a batch lies outside the table's {} rows", token[i], i,
           rows);
    }
  }
  return token;
}

}  // namespace

void CpuBackend::issue(const EmbeddingForward& args) {
  const auto [rows, columns] = cpu::matrix_of(args.table);
  const std::int32_t* tokens = checked_tokens(args.tokens, rows);
  floating(args.table, [&, c = columns](auto type) {
    using T = decltype(type);
    const T* table = args.table.data<T>();
    const Index n = args.tokens.elements();
    T* y = args.y.data<T>();
    threads_.parallel_for(n, cpu::rows_of_work(c), [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) std::copy_n(table + tokens[i] * c, c, y + i * c);
    });
  });
}

void CpuBackend::issue(const EmbeddingBackward& args) {
  const auto [rows, columns] = cpu::matrix_of(args.dtable);
  const std::int32_t* tokens = checked_tokens(args.tokens, rows);
  floating(args.dy, [&, v = rows, c = columns](auto type) {
    using T = decltype(type);
    const Index n = args.tokens.elements();
    const T* dy = args.dy.data<T>();
    Compute<T>* dtable = args.dtable.data<Compute<T>>();
    // ends[row] becomes where the row's positions end in `order`; they begin where those of the row
    // before end.
    const cpu::Workspace<Index> ends_memory(*allocator_, v + 1), order_memory(*allocator_, n);
    Index* ends = ends_memory.data();
    Index* order = order_memory.data();
    std::fill_n(ends, v + 1, Index{0});
    for (Index i = 0; i < n; ++i) ++ends[tokens[i] + 1];
    for (Index row = 0; row < v; ++row) ends[row + 1] += ends[row];
    for (Index i = 0; i < n; ++i) order[ends[tokens[i]]++] = i;
    threads_.parallel_for(v, cpu::rows_of_work(c), [&](Index begin, Index end) {
      const cpu::Workspace<double> sum_memory(*allocator_, c);
      double* sum = sum_memory.data();
      for (Index row = begin; row < end; ++row) {
        Compute<T>* to = dtable + row * c;
        for (Index column = 0; column < c; ++column)
          sum[column] = args.accumulate ? static_cast<double>(to[column]) : 0.0;
        for (Index k = row == 0 ? 0 : ends[row - 1]; k < ends[row]; ++k) {
          const T* from = dy + order[k] * c;
          for (Index column = 0; column < c; ++column)
            sum[column] += static_cast<double>(cpu::widen(from[column]));
        }
        for (Index column = 0; column < c; ++column)
          to[column] = static_cast<Compute<T>>(sum[column]);
      }
    });
  });
}

}  // namespace starling
