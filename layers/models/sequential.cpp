#include "layers/sequential.h"

#include "layers/builtin.h"

namespace starling {

void builtin::add_sequential_model(ModelRegistry& registry) {
  registry.add(
      "sequential",
      [](ConfigSection& section, const ModelOutputs&) {
        return std::make_unique<Sequential>(
            read_layers(section, "layers", true, "the layers, in order, each {\"type\": …}; the last gives num_classes features"));
      },
      "any chain of layers");
}

}  // namespace starling
