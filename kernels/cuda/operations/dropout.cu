#include "core/operations/pointwise.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/step_scalar.h"
#include "kernels/math/dropout.h"

namespace starling::cuda {
namespace {

template <class T>
struct Drop {
  static constexpr int kInputs = 1;
  std::uint64_t key;
  StepScalar<std::uint64_t> counter;
  float p;
  T scale;

  /// Bit j: element 4·group + j is kept.
  STARLING_HD unsigned kept(Index group) const {
    const math::DropoutMask mask =
        math::dropout_mask(key, counter.get(), static_cast<std::uint64_t>(group), p);
    return (mask.keep[0] ? 1u : 0u) | (mask.keep[1] ? 2u : 0u) | (mask.keep[2] ? 4u : 0u) |
           (mask.keep[3] ? 8u : 0u);
  }
  /// `first` need not be a multiple of 4: a tensor may start anywhere in its storage.
  template <int N>
  STARLING_HD void operator()(Index first, const T (&x)[1][N], T (&y)[N]) const {
    const int skip = static_cast<int>(first & 3);
    unsigned keep = 0;
#pragma unroll
    for (int g = 0; g < (N + 6) / 4; ++g) {
      if (4 * g < skip + N) keep |= kept((first >> 2) + g) << (4 * g);
    }
    keep >>= skip;
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = (keep >> i) & 1u ? x[0][i] * scale : T(0);
  }
};

}  // namespace

void CudaBackend::issue(const Dropout& args) {
  const auto counter = step_scalar<std::uint64_t>(
      args.counter, [at = args.counter](const StepValues& now, const StepValues& then) {
        return at - then.dropout_counter + now.dropout_counter;
      });
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const Index n = args.x.elements();
    const double scale = args.p < 1.0 ? 1.0 / (1.0 - args.p) : 0.0;
    pointwise<T, T>(handle(), n, {args.x.data<T>()}, args.y.data<T>(),
                    Drop<Compute<T>>{args.key, counter, static_cast<float>(args.p),
                                     static_cast<Compute<T>>(scale)});
  });
}

}  // namespace starling::cuda
