#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"

namespace starling::cuda {
namespace {

/// Between the types of arithmetic: fp64 becomes bf16 and fp16 by way of fp32, as on the CPU.
template <class From, class To>
struct Convert {
  static constexpr int kInputs = 1;
  template <int N>
  STARLING_HD void operator()(Index, const From (&x)[1][N], To (&y)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = static_cast<To>(x[0][i]);
  }
};

template <class From, class To>
void cast_numbers(StreamHandle stream, const Tensor& x, const Tensor& y) {
  pointwise<From, To>(stream, x.elements(), {x.data<From>()}, y.data<To>(),
                      Convert<Compute<From>, Compute<To>>{});
}

template <class From>
void cast_from(StreamHandle stream, const Tensor& x, const Tensor& y) {
  switch (y.dtype()) {
    case DType::kFloat32: return cast_numbers<From, float>(stream, x, y);
    case DType::kFloat64: return cast_numbers<From, double>(stream, x, y);
    case DType::kBFloat16: return cast_numbers<From, BFloat16>(stream, x, y);
    case DType::kFloat16: return cast_numbers<From, Float16>(stream, x, y);
    default:
      fail(ExitCode::kUsage, "cuda",
           "a cast from {} to {} is not offered; to fp32, fp64, bf16 and fp16 it is",
           name_of(x.dtype()), name_of(y.dtype()));
  }
}

}  // namespace

void CudaBackend::cast(const Cast& args) {
  require(args.x && args.y && args.x.elements() == args.y.elements(), "cuda",
          "cast: x and y must have as many elements");
  switch (args.x.dtype()) {
    case DType::kFloat32: return cast_from<float>(handle(), args.x, args.y);
    case DType::kFloat64: return cast_from<double>(handle(), args.x, args.y);
    case DType::kBFloat16: return cast_from<BFloat16>(handle(), args.x, args.y);
    case DType::kFloat16: return cast_from<Float16>(handle(), args.x, args.y);
    case DType::kUInt8: return cast_from<std::uint8_t>(handle(), args.x, args.y);
    default:
      fail(ExitCode::kUsage, "cuda",
           "a cast from {} is not offered; from floating types and uint8 it is",
           name_of(args.x.dtype()));
  }
}

}  // namespace starling::cuda
