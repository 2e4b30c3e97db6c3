#include "kernels/cuda/libraries/cudnn.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/operations/convolutions.h"
#include "kernels/cuda/libraries/cudnn_finish.h"
#include "kernels/cuda/libraries/cudnn_plans.h"

namespace starling::cuda {

namespace {

/// Binds a tensor; a missing one is null, which no graph accepts.
Binding bind(GraphTensor as, const Tensor& tensor) { return {as, tensor ? tensor.raw() : nullptr}; }
/// The tensors that both passes of attention read.
Bindings bind(const Attention& args, const View& y, const Tensor& lse) {
  Bindings result{{GraphTensor::kQ, args.q.raw()},
                  {GraphTensor::kK, args.k.raw()},
                  {GraphTensor::kV, args.v.raw()},
                  {GraphTensor::kY, y.raw()},
                  bind(GraphTensor::kStats, lse)};
  if (args.mask) result.push_back({GraphTensor::kMask, args.mask.raw()});
  return result;
}

/// Plans assume tensors aligned to 16 bytes.
bool aligned(const Bindings& bindings) {
  return std::all_of(bindings.begin(), bindings.end(), [](const Binding& binding) {
    return binding.data != nullptr && reinterpret_cast<std::uintptr_t>(binding.data) % 16 == 0;
  });
}

class CudnnLibrary final : public Cudnn {
 public:
  CudnnLibrary(const LibrarySettings& settings, WorkspaceSource& workspaces,
               std::unique_ptr<GraphMaker> maker)
      : workspaces_(workspaces), plans_(settings, workspaces, std::move(maker)) {}

  bool conv2d_forward(const Conv2dForward& args, StreamHandle stream) override {
    const Bindings bindings{bind(GraphTensor::kX, args.x), bind(GraphTensor::kWeight, args.weight),
                            bind(GraphTensor::kY, args.y)};
    Plan* plan = find(args, bindings);
    if (!plan) return false;
    plans_.run(*plan, bindings, stream);
    return true;
  }

  bool conv2d_backward_data(const Conv2dBackwardData& args, StreamHandle stream) override {
    const Bindings bindings{bind(GraphTensor::kDy, args.dy),
                            bind(GraphTensor::kWeight, args.weight),
                            bind(GraphTensor::kDx, args.dx)};
    Plan* plan = find(args, bindings);
    if (!plan) return false;
    plans_.run(*plan, bindings, stream);
    return true;
  }

  bool conv2d_backward_weights(const Conv2dBackwardWeights& args, StreamHandle stream) override {
    const DType dtype = args.x.dtype();
    // Engines write gradients only in x's type, and do not accumulate.
    const bool direct = !args.accumulate && args.dweight && args.dweight.dtype() == dtype;
    if (!direct && args.dweight && args.dweight.dtype() != DType::kFloat32) return false;
    Tensor result = direct ? args.dweight : Tensor();
    Bindings bindings{bind(GraphTensor::kX, args.x), bind(GraphTensor::kDy, args.dy)};
    if (direct) bindings.push_back(bind(GraphTensor::kDweight, result));
    Plan* plan = find(args, bindings);
    if (!plan) return false;
    if (!direct) {
      result = scratch(args.dweight.shape(), dtype);
      bindings.push_back(bind(GraphTensor::kDweight, result));
    }
    plans_.run(*plan, bindings, stream);
    if (!direct) take_gradient(result, args.dweight, args.accumulate, stream);
    return true;
  }

  bool attention_forward(const AttentionForward& args, StreamHandle stream) override {
    const Bindings bindings = bind(args, args.y, args.lse);
    Plan* plan = find(args, bindings);
    if (!plan) return false;
    plans_.run(*plan, bindings, stream);
    // cuDNN returns NaN for queries whose keys are all masked.
    if (args.mask) clear_masked_queries(args, stream);
    return true;
  }

  bool attention_backward(const AttentionBackward& args, StreamHandle stream) override {
    Bindings bindings = bind(args, args.y, args.lse);
    bindings.insert(bindings.end(), {{GraphTensor::kDy, args.dy.raw()},
                                     {GraphTensor::kDq, args.dq.raw()},
                                     {GraphTensor::kDk, args.dk.raw()},
                                     {GraphTensor::kDv, args.dv.raw()}});
    Plan* plan = find(args, bindings);
    if (!plan) return false;
    plans_.run(*plan, bindings, stream);
    return true;
  }

  std::string version() const override { return plans_.version(); }

 private:
  using Plan = CudnnPlans::Entry;

  /// The plan for a call on these tensors, including those that the library adds. Calls that cannot
  /// run are not planned.
  template <class Args>
  Plan* find(const Args& args, const Bindings& bindings) {
    std::string why;
    const std::optional<GraphSpec> spec = spec_of(args, why);
    if (!spec) {
      if (refused_.insert(why).second)
        log::write(log::Level::kDebug,
                   fmt::format("[cudnn] an operation is not one graph of cuDNN's: {}", why));
      return nullptr;
    }
    return aligned(bindings) ? plans_.find(*spec) : nullptr;
  }

  Tensor scratch(const Shape& shape, DType dtype) {
    return {workspaces_.workspace(static_cast<std::size_t>(shape.elements()) * size_of(dtype)), 0,
            shape, dtype};
  }

  WorkspaceSource& workspaces_;
  CudnnPlans plans_;
  std::set<std::string> refused_;  ///< reasons already logged
};

}  // namespace

std::unique_ptr<Cudnn> make_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces,
                                  std::unique_ptr<GraphMaker> maker) {
  return std::make_unique<CudnnLibrary>(settings, workspaces, std::move(maker));
}

}  // namespace starling::cuda
