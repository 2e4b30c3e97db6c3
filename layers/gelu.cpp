#include "layers/activation.h"
#include "layers/builtin.h"

namespace starling {

void builtin::add_gelu(LayerRegistry& registry) {
  registry.add(
      "gelu", [](ConfigSection&) { return std::make_unique<ActivationLayer>(Activation::kGelu); },
      "the exact Gaussian error linear unit, x·Φ(x) (arXiv 1606.08415)");
}

}  // namespace starling
