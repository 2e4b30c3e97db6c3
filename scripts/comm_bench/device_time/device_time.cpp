// A layer that takes time and no processor, as computation on an accelerator does: {"type":
// "device_time", "ms": 10}. Emulated hosts share one machine's processors; with this they compute
// side by side all the same, and what is left to measure is the exchange.
#include <chrono>
#include <memory>
#include <thread>

#include "layers/layer.h"

namespace {

using namespace starling;

class DeviceTime final : public Layer {
 public:
  explicit DeviceTime(double ms) : ms_(ms) {}

 protected:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override {
    if (!pass.training) return x;
    take(ms_);
    return pass.record("device_time", x.value(), {x}, {}, [ms = ms_](Gradients& g) {
      take(2.0 * ms);  // a backward pass is twice as long
      g.set(0, std::move(g.take_terms().front()));
    });
  }

 private:
  static void take(double ms) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
  }
  double ms_;
};

std::unique_ptr<Layer> make_device_time(ConfigSection& config) {
  return std::make_unique<DeviceTime>(
      config.number("ms", 1.0, Range::at_least(0.0),
                    "milliseconds of the forward pass; the backward pass takes twice as long"));
}

}  // namespace

extern "C" void starling_register_plugin() {
  starling::layers().add("device_time", make_device_time,
                         "waits, as for an accelerator that computes");
}
