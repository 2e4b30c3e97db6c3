#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "apps/training/tasks/task.h"
#include "core/tensor.h"
#include "kernels/cuda/libraries/cudnn_spec.h"

namespace starling::testing {

struct TracedModel {
  std::string name, json;
  Shape input;
  std::int64_t batch = 128;
  std::set<std::int64_t> evaluated = {};  ///< sizes of the batches that it is tested with
  std::shared_ptr<Task> task = {};        ///< null: image classification
};
/// A small network with biases, groups, strides and dilation, which no config has.
TracedModel grouped_model();
/// The models of configs/*.json as they are there; where the number of samples is known, tested,
/// last and smaller batches too, on 1, 2 and 4 ranks.
std::vector<TracedModel> configured_models();

/// The graphs that training the models asks of cuDNN with activations of `dtype`, on shapes alone:
/// each with the first model that needs it.
std::map<cuda::GraphSpec, std::string> trace_graphs(const std::vector<TracedModel>& models,
                                                    DType dtype);

}  // namespace starling::testing
