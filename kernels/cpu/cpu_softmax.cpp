#include <algorithm>

#include "core/operations/norms.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Softmax: rows where it goes along the last dimension, otherwise columns, some side by side.
namespace starling {

using cpu::Index;

namespace {

/// Calls rows(first, count) or columns(first element, how many columns) over all of them.
template <class Rows, class Columns>
void over_softmax(const cpu::Threads& threads, const Along& along, const Rows& rows,
                  const Columns& columns) {
  if (along.inner == 1) {
    return threads.parallel_for(along.outer, cpu::rows_of_work(along.size),
                                [&](Index begin, Index end) { rows(begin, end - begin); });
  }
  const Index width = std::min(along.inner, cpu::kSoftmaxColumns),
              tiles = (along.inner + width - 1) / width;
  threads.parallel_for(along.outer * tiles, cpu::rows_of_work(along.size * width),
                       [&](Index begin, Index end) {
                         for (Index t = begin; t < end; ++t) {
                           const Index column = t % tiles * width;
                           columns(t / tiles * along.size * along.inner + column,
                                   std::min(width, along.inner - column));
                         }
                       });
}

}  // namespace

void CpuBackend::issue(const SoftmaxForward& args) {
  const Along along(args.x.shape(), args.dim);
  if (args.x.elements() == 0) return;
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const cpu::Kernels<T>& k = kernels<T>();
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    over_softmax(
        threads_, along,
        [&](Index row, Index count) {
          const Index o = row * along.size;
          k.softmax(x + o, y + o, count, along.size, args.logarithm);
        },
        [&](Index o, Index width) {
          k.softmax_columns(x + o, y + o, along.size, along.inner, width, args.logarithm);
        });
  });
}

void CpuBackend::issue(const SoftmaxBackward& args) {
  const Along along(args.y.shape(), args.dim);
  if (args.y.elements() == 0) return;
  floating(args.y, [&](auto type) {
    using T = decltype(type);
    const cpu::Kernels<T>& k = kernels<T>();
    const T *y = args.y.data<T>(), *dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    over_softmax(
        threads_, along,
        [&](Index row, Index count) {
          const Index o = row * along.size;
          k.softmax_backward(y + o, dy + o, dx + o, count, along.size, args.logarithm);
        },
        [&](Index o, Index width) {
          k.softmax_backward_columns(y + o, dy + o, dx + o, along.size, along.inner, width,
                                     args.logarithm);
        });
  });
}

}  // namespace starling
