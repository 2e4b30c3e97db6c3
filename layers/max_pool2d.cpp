#include "layers/builtin.h"
#include "layers/pool2d.h"
#include "layers/window.h"

namespace starling {

void builtin::add_max_pool2d(LayerRegistry& registry) {
  registry.add(
      "max_pool2d",
      [](ConfigSection& section) { return std::make_unique<Pool2d>(Pooling::kMax, read_window(section, WindowKeys::kPooling)); },
      "largest value of every window");
}

}  // namespace starling
