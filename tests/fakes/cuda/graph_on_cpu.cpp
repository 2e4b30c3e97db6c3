#include "tests/fakes/cuda/graph_on_cpu.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/operations/convolutions.h"
#include "core/operations/products.h"

namespace starling::cuda::shim {

namespace {

/// Numbers from one type into another.
template <class From, class To>
void convert(const void* from, void* to, std::int64_t n) {
  const auto* source = static_cast<const From*>(from);
  std::transform(source, source + n, static_cast<To*>(to),
                 [](From x) { return static_cast<To>(x); });
}
/// Numbers of `dtype` as fp32, or fp64 where they are that.
Tensor widened(const void* from, const Shape& shape, DType dtype, Backend& cpu) {
  Tensor tensor(cpu, shape, is_low_precision(dtype) ? DType::kFloat32 : dtype);
  switch (dtype) {
    case DType::kBFloat16: convert<BFloat16, float>(from, tensor.raw(), tensor.elements()); break;
    case DType::kFloat16: convert<Float16, float>(from, tensor.raw(), tensor.elements()); break;
    default: std::memcpy(tensor.raw(), from, tensor.bytes());
  }
  return tensor;
}
/// And back, rounded once.
void store(const Tensor& from, void* to, DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return convert<float, BFloat16>(from.raw(), to, from.elements());
    case DType::kFloat16: return convert<float, Float16>(from.raw(), to, from.elements());
    default: std::memcpy(to, from.raw(), from.bytes());
  }
}

class GraphOnCpu {
 public:
  GraphOnCpu(const GraphSpec& spec, const Bindings& bindings, Backend& cpu)
      : spec_(spec), bindings_(bindings), cpu_(cpu) {}

  void run() {
    const auto& [n, h, w, c] = spec_.x;
    const auto& [m, p, q, o] = spec_.y;
    const Shape x{n, h, w, c}, y{m, p, q, o},
        weight{o, spec_.kernel[0], spec_.kernel[1], c / spec_.groups};
    const Window2d window{spec_.kernel, spec_.stride, spec_.padding, spec_.dilation, spec_.groups};
    const DType io = spec_.dtype, wide = DType::kFloat32;
    switch (spec_.kind) {
      case GraphKind::kForward: {
        const Conv2dForward args{.x = in(GraphTensor::kX, x, io),
                                 .weight = in(GraphTensor::kWeight, weight, io),
                                 .y = Tensor(cpu_, y, wide),
                                 .window = window};
        cpu_.conv2d_forward(args);
        out(GraphTensor::kY, args.y, io);
        break;
      }
      case GraphKind::kBackwardData: {
        const Conv2dBackwardData args{in(GraphTensor::kDy, y, io),
                                      in(GraphTensor::kWeight, weight, io), Tensor(cpu_, x, wide),
                                      window};
        cpu_.conv2d_backward_data(args);
        out(GraphTensor::kDx, args.dx, io);
        break;
      }
      case GraphKind::kBackwardWeights: {
        const Tensor dweight(cpu_, weight, wide);
        cpu_.conv2d_backward_weights({.x = in(GraphTensor::kX, x, io),
                                      .dy = in(GraphTensor::kDy, y, io),
                                      .dweight = dweight,
                                      .window = window});
        out(GraphTensor::kDweight, dweight, io);
        break;
      }
    }
    require(used_ == bindings_.size(), "shim", "{}: {} of {} tensors were the graph's", text(spec_),
            used_, bindings_.size());
  }

 private:
  void* pointer(GraphTensor id) {
    for (const Binding& binding : bindings_) {
      if (binding.tensor == id) return ++used_, binding.data;
    }
    fail(ExitCode::kInternal, "shim", "{}: tensor {} is not bound", text(spec_),
         static_cast<int>(id));
  }
  Tensor in(GraphTensor id, const Shape& shape, DType dtype) {
    return widened(pointer(id), shape, dtype, cpu_);
  }
  void out(GraphTensor id, const Tensor& tensor, DType dtype) { store(tensor, pointer(id), dtype); }

  const GraphSpec& spec_;
  const Bindings& bindings_;
  Backend& cpu_;
  std::size_t used_ = 0;
};

}  // namespace

void carry_out(const GraphSpec& spec, const Bindings& bindings, Backend& cpu) {
  GraphOnCpu(spec, bindings, cpu).run();
}

void multiply(const Matmul& args, Backend& cpu) {
  const auto wide = [&](const Tensor& from) {
    return from ? widened(from.raw(), from.shape(), from.dtype(), cpu) : Tensor();
  };
  Matmul product = args;
  product.a = args.a.of(wide(args.a.tensor()));
  product.b = args.b.of(wide(args.b.tensor()));
  product.bias = wide(args.bias);
  // c lies in one piece here, or numbers between its rows go through fp32 and come back as they
  // were
  const Tensor& c = args.c.tensor();
  product.c = args.c.of(wide(c));
  cpu.matmul(product);
  store(product.c.tensor(), c.raw(), c.dtype());
}

}  // namespace starling::cuda::shim
