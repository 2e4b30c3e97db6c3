#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/operations/products.h"
#include "kernels/cuda/libraries/cudnn_graphs.h"

namespace starling::cuda::shim {

/// A tensor on memory that its owner keeps alive.
Tensor borrowed(Backend& cpu, void* data, const Shape& shape, DType dtype);
/// Computes a product as cuBLASLt does it.
void multiply(const Matmul& args, Backend& cpu);

/// Stands in for cuDNN: its plans run on the CPU backend in fp32, as one item of the stream
/// labelled "cudnn convolution". Tests choose what it supports, and read what it was asked.
class FakeGraphs final : public GraphMaker {
 public:
  FakeGraphs();

  int candidates = 3;                             ///< of every plan
  std::function<bool(const GraphSpec&)> refuses;  ///< graphs without engines
  std::function<bool(int candidate)> cannot_finalise, cannot_run;
  std::vector<double> times{3.0, 1.0, 2.0};  ///< of the candidates, in milliseconds

  int finalised = 0;                 ///< attempts
  std::map<GraphSpec, int> planned;  ///< how often each was asked for
  std::vector<int> runs;             ///< candidates, in the order of issue
  PlanRules rules;                   ///< of the latest plan

  std::unique_ptr<GraphPlan> plan(const GraphSpec& spec, const PlanRules& rules_wanted,
                                  std::string& why) override;
  std::string version() const override { return "a stand-in for cuDNN"; }

 private:
  std::shared_ptr<Backend> cpu_;
};

}  // namespace starling::cuda::shim
