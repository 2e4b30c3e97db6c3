#include "core/operations/pointwise.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"

namespace starling::cuda {
namespace {

template <class From, class To>
void cast_numbers(StreamHandle stream, const Tensor& x, const Tensor& y) {
  pointwise<From, To>(stream, x.elements(), {x.data<From>()}, y.data<To>(),
                      Convert<Compute<From>, Compute<To>>{});
}

template <class From>
void cast_from(StreamHandle stream, const Tensor& x, const Tensor& y) {
  dispatch_floating(y.dtype(), [&](auto to) { cast_numbers<From, decltype(to)>(stream, x, y); });
}

}  // namespace

void CudaBackend::issue(const Cast& args) {
  if (args.x.dtype() == DType::kUInt8) return cast_from<std::uint8_t>(handle(), args.x, args.y);
  if (args.x.dtype() == DType::kInt32) return cast_from<std::int32_t>(handle(), args.x, args.y);
  dispatch_floating(args.x.dtype(),
                    [&](auto from) { cast_from<decltype(from)>(handle(), args.x, args.y); });
}

}  // namespace starling::cuda
