#include "layers/activation.h"
#include "layers/builtin.h"

namespace starling {

void builtin::add_relu(LayerRegistry& registry) {
  registry.add(
      "relu", [](ConfigSection&) { return std::make_unique<ActivationLayer>(Activation::kRelu); }, "max(0, x)");
}

}  // namespace starling
