#include "kernels/optimizer.h"

#include "kernels/optimizers/settings.h"

namespace starling {

OptimizerRegistry& optimizers() {
  static OptimizerRegistry registry("optimizer");
  return registry;
}

void register_builtin_optimizers() {
  static const bool once = [] {
    register_sgd();
    register_adam();
    register_accum_adam();
    return true;
  }();
  (void)once;
}

}  // namespace starling
