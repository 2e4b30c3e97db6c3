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
        auto model = std::make_unique<Sequential>();
        model->add(flatten_layer());
        for (std::int64_t width : hidden) {
          model->add(std::make_unique<Linear>(width));
          model->add(Activation::kRelu);
        }
        model->add(std::make_unique<Linear>(site.num_classes));
        return model;
      },
      "fully connected layers with ReLU between them; named as in a sequential");
}

}  // namespace starling
