#include "layers/activation.h"
#include "layers/builtin.h"

namespace starling {

void builtin::add_silu(LayerRegistry& registry) {
  registry.add(
      "silu", [](ConfigSection&) { return std::make_unique<ActivationLayer>(Activation::kSilu); }, "x · sigmoid(x)");
}

}  // namespace starling
