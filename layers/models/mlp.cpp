#include "core/operations/pointwise.h"
#include "layers/builtin.h"
#include "layers/linear.h"
#include "layers/sequential.h"
#include "layers/stateless.h"
#include "layers/window.h"

namespace starling {

void builtin::add_mlp(ModelRegistry& registry) {
  registry.add(
      "mlp",
      [](ConfigSection& section, const ModelOutputs& site) {
        const std::vector<std::int64_t> hidden =
            section.integers("hidden", {512, 512}, kSizeRange,
                             "widths of the hidden layers, each followed by a ReLU");
        std::vector<std::unique_ptr<Layer>> layers;
        layers.push_back(std::make_unique<Flatten>());
        for (std::int64_t width : hidden) {
          layers.push_back(std::make_unique<Linear>(width));
          layers.push_back(std::make_unique<ActivationLayer>(Activation::kRelu));
        }
        layers.push_back(std::make_unique<Linear>(site.num_classes));
        return std::make_unique<Sequential>(std::move(layers));
      },
      "fully connected layers with ReLU between them; named as the sequential that it is");
}

}  // namespace starling
