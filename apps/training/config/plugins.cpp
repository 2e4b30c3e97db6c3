#include "apps/training/config/plugins.h"

#include <mutex>

#include "apps/data/augment.h"
#include "apps/data/dataset.h"
#include "apps/data/sampler.h"
#include "apps/inference/hugging_face.h"
#include "apps/training/schedules/schedule.h"
#include "apps/training/tasks/metric.h"
#include "comm/algorithm.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"
#include "topology/topology.h"

namespace starling {

void register_builtins() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_builtin_layers();
    register_builtin_models();
    add_pretrained_model(models());
    register_builtin_topologies();
    register_builtin_optimizers();
    register_builtin_schedules();
    register_builtin_datasets();
    register_builtin_samplers();
    register_builtin_augmentations();
    register_builtin_tasks();
    register_builtin_losses();
    register_builtin_metrics();
    register_builtin_algorithms();
  });
}

}  // namespace starling
