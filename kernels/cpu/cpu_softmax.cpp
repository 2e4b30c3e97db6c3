#include "core/operations/norms.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Softmax, each thread some of the rows.
namespace starling {

using cpu::Index;

void CpuBackend::issue(const SoftmaxForward& args) {
  const auto [rows, n] = cpu::matrix_of(args.x);
  floating(args.x, [&, rows = rows, n = n](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    threads_.parallel_for(rows, cpu::rows_of_work(n), [&](Index begin, Index end) {
      const Index o = begin * n;
      kernels<T>().softmax(x + o, y + o, end - begin, n, args.logarithm);
    });
  });
}

void CpuBackend::issue(const SoftmaxBackward& args) {
  const auto [rows, n] = cpu::matrix_of(args.y);
  floating(args.y, [&, rows = rows, n = n](auto type) {
    using T = decltype(type);
    const T *y = args.y.data<T>(), *dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    threads_.parallel_for(rows, cpu::rows_of_work(n), [&](Index begin, Index end) {
      const Index o = begin * n;
      kernels<T>().softmax_backward(y + o, dy + o, dx + o, end - begin, n, args.logarithm);
    });
  });
}

}  // namespace starling
