#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "kernels/cuda/device/tiled_product.h"
#include "kernels/cuda/operations/plain.h"

namespace starling::cuda {
namespace {

/// Steps of 1 along a factor's lines, whichever of its dimensions they are.
template <class T>
PlainMatrix<T> plain_matrix(const View& matrices, int across, int k) {
  const FactorLayout layout = factor_layout(matrices);
  const bool along_k = layout.transposed == (k < across);
  return {matrices.data<T>(), along_k ? layout.line : 1, along_k ? 1 : layout.line,
          matrices.stride(0)};
}

template <class T, class Out>
void run(CudaBackend& backend, const Matmul& args, const ProductSizes& s) {
  using C = Compute<T>;
  launch_product<C, Out>(backend, plain_matrix<T>(args.a, 1, 2), plain_matrix<T>(args.b, 2, 1), s,
                         {args.c.data<Out>(), optional<C>(args.bias), factor_layout(args.c).line,
                          args.c.stride(0), args.accumulate, args.relu, 0});
}

}  // namespace

static void plain_product(CudaBackend& backend, const Matmul& args) {
  const ProductSizes s{.m = args.c.shape()[1],
                       .n = args.c.shape()[2],
                       .k = args.a.shape()[2],
                       .groups = static_cast<int>(args.c.shape()[0])};
  floating(args.a.tensor(), [&](auto type) {
    using T = decltype(type);
    if (args.c.dtype() == DTypeOf<Compute<T>>::value) {
      run<T, Compute<T>>(backend, args, s);
    } else {
      run<T, T>(backend, args, s);
    }
  });
}

void plain_matmul(CudaBackend& backend, const Matmul& args) {
  Matmul wide = args;
  if (args.bias && is_low_precision(args.bias.dtype())) {
    wide.bias = Tensor(backend, args.bias.shape(), DType::kFloat32);
    backend.cast({.x = args.bias, .y = wide.bias});
  }
  for (const Matmul& part : batches_of(wide)) plain_product(backend, part);
}

}  // namespace starling::cuda
