#include "layers/builtin.h"
#include "layers/pool2d.h"
#include "layers/window.h"

namespace starling {

void builtin::add_avg_pool2d(LayerRegistry& registry) {
  registry.add(
      "avg_pool2d",
      [](ConfigSection& section) { return std::make_unique<Pool2d>(Pooling::kAverage, read_window(section, WindowKeys::kPooling)); },
      "mean of every window, padding counted as zeros");
}

}  // namespace starling
