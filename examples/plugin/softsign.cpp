// A layer with an operation of its own: the CPU's code, the way back, and what the layer can be run
// with.
#include "softsign.h"

#include <cstdint>
#include <memory>
#include <utility>

#include <starling/layer.h>

namespace mine {
namespace {

using namespace starling;

template <class T>
void forward(const SoftsignForward& args) {
  const T* x = args.x.data<T>();
  T* y = args.y.data<T>();
  for (std::int64_t i = 0; i < args.x.elements(); ++i) y[i] = softsign_of(x[i]);
}

template <class T>
void backward(const SoftsignBackward& args) {
  const T *x = args.x.data<T>(), *dy = args.dy.data<T>();
  T* dx = args.dx.data<T>();
  for (std::int64_t i = 0; i < args.x.elements(); ++i) dx[i] = dy[i] * softsign_slope(x[i]);
}

// Layer::support() below lets no other dtype come here; data<T>() would refuse it.
const bool forward_on_cpu =
    softsign_forward().add(DeviceType::kCpu, [](Backend&, const SoftsignForward& args) {
      args.x.dtype() == DType::kFloat64 ? forward<double>(args) : forward<float>(args);
    });
const bool backward_on_cpu =
    softsign_backward().add(DeviceType::kCpu, [](Backend&, const SoftsignBackward& args) {
      args.x.dtype() == DType::kFloat64 ? backward<double>(args) : backward<float>(args);
    });

class Softsign final : public Layer {
 protected:
  Shape build(const Shape& input) override { return input; }

  Variable compute(const Variable& x, Pass& pass) override {
    const Tensor value = x.value();
    Tensor y(pass.backend, value.shape(), value.dtype());
    softsign_forward()(pass.backend, {value, y});
    // What the way back needs is kept by the closure until it has run.
    return pass.record("softsign", std::move(y), {x}, {}, [value](Gradients& gradients) {
      Tensor dx(gradients.backend(), value.shape(), value.dtype());
      softsign_backward()(gradients.backend(), {value, gradients.output(), dx});
      gradients.set(0, std::move(dx));
    });
  }

  /// Written for fp32 and fp64, and for a GPU where softsign.cu was compiled: anything else is
  /// refused before training starts.
  LayerSupport support() const override {
    return {{DType::kFloat32, DType::kFloat64}, softsign_forward().devices()};
  }
};

}  // namespace

void register_softsign() {
  layers().add(
      "softsign", [](ConfigSection&) { return std::make_unique<Softsign>(); }, "y = x / (1 + |x|)");
}

}  // namespace mine
