#include "kernels/cuda/libraries/cudnn_graphs.h"

#include <cudnn_frontend.h>
#include <fmt/format.h>
#if __has_include(<cudnn_frontend/utils/cuda_graph_retention.h>)
#define STARLING_CUDNN_RETENTION 1  // cudnn-frontend 1.32 has it; what an older one does not do need not be switched off
#endif

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"

namespace starling::cuda {

namespace fe = cudnn_frontend;

namespace {

using fe::graph::Tensor_attributes;
using Attributes = std::shared_ptr<Tensor_attributes>;

/// One line of what cuDNN says.
std::string message_of(fe::error_t status) {
  std::string text = status.get_message();
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > 300) text.resize(300);
  return text;
}

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) fail(ExitCode::kInternal, "cudnn", "{}: {}", what, cudnnGetErrorString(status));
}
void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail(ExitCode::kInternal, "cudnn", "{}: {}", what, cudaGetErrorString(status));
}

fe::DataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return fe::DataType_t::FLOAT;
    case DType::kBFloat16: return fe::DataType_t::BFLOAT16;
    case DType::kFloat16: return fe::DataType_t::HALF;
    default: break;
  }
  fail(ExitCode::kInternal, "cudnn", "a graph of {} tensors", name_of(dtype));
}

/// The frontend's graph with access to the list of its engines.
class OpenGraph final : public fe::graph::Graph {
 public:
  /// Engines that pass the filters, in the heuristic's order. Nothing is compiled.
  std::vector<std::int64_t> supported() {
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < get_execution_plan_count(); ++i) {
      if (plans.check_support_at_index(i).is_good()) indices.push_back(i);
    }
    return indices;
  }
};

/// Builds the frontend's graph for a spec.
class GraphBuilder {
 public:
  GraphBuilder(OpenGraph& graph, const GraphSpec& spec) : graph_(graph), spec_(spec) {}

  void build() {
    // A batch norm's backward engines want values between their pointwise steps in the tensors' type.
    const bool wide = spec_.kind != GraphKind::kBatchNormBackward;
    graph_.set_io_data_type(type_of(spec_.dtype))
        .set_intermediate_data_type(wide ? fe::DataType_t::FLOAT : type_of(spec_.dtype))
        .set_compute_data_type(fe::DataType_t::FLOAT);
    switch (spec_.kind) {
      case GraphKind::kConvolution: return convolution();
      case GraphKind::kConvolutionBias: return convolution();
      case GraphKind::kConvolutionStatistics: return convolution();
      case GraphKind::kNormConvolutionStatistics: return convolution();
      case GraphKind::kConvolutionBackwardData: return backward_data();
      case GraphKind::kConvolutionBackwardDataNorm: return backward_data();
      case GraphKind::kConvolutionBackwardWeights: return backward_weights();
      case GraphKind::kNormConvolutionBackwardWeights: return backward_weights();
      case GraphKind::kBatchNorm: return batch_norm();
      case GraphKind::kBatchNormBackward: return batch_norm_backward();
    }
  }

 private:
  using Sizes = std::vector<std::int64_t>;
  struct Layout {
    Sizes dim, stride;
  };
  /// N×H×W×C memory under cuDNN's order N, C, H, W.
  static Layout channels_last(const std::array<std::int64_t, 4>& s) {
    const auto [n, h, w, c] = s;
    return {{n, c, h, w}, {h * w * c, 1, w * c, c}};
  }
  /// O×kH×kW×I memory.
  Layout weight() const { return channels_last({spec_.y[3], spec_.kernel[0], spec_.kernel[1], spec_.x[3] / spec_.groups}); }

  Attributes input(GraphTensor id, const Layout& layout) {
    return graph_.tensor(Tensor_attributes().set_uid(static_cast<std::int64_t>(id)).set_dim(layout.dim).set_stride(layout.stride));
  }
  Attributes per_channel(GraphTensor id, std::int64_t c, fe::DataType_t type = fe::DataType_t::FLOAT) {
    return graph_.tensor(
        Tensor_attributes().set_uid(static_cast<std::int64_t>(id)).set_dim({1, c, 1, 1}).set_stride({c, 1, c, c}).set_data_type(type));
  }
  Attributes per_channel(GraphTensor id) { return per_channel(id, spec_.x[3]); }
  static void output(const Attributes& tensor, GraphTensor id, const Layout& layout) {
    tensor->set_output(true).set_uid(static_cast<std::int64_t>(id)).set_dim(layout.dim).set_stride(layout.stride);
  }
  static void per_channel_output(const Attributes& tensor, GraphTensor id) {
    tensor->set_output(true).set_uid(static_cast<std::int64_t>(id)).set_data_type(fe::DataType_t::FLOAT);
  }
  template <class A>
  A window() const {
    const auto list = [](const std::array<std::int64_t, 2>& pair) { return Sizes(pair.begin(), pair.end()); };
    return A().set_padding(list(spec_.padding)).set_stride(list(spec_.stride)).set_dilation(list(spec_.dilation));
  }
  static fe::graph::Pointwise_attributes pointwise(fe::PointwiseMode_t mode) { return fe::graph::Pointwise_attributes().set_mode(mode); }

  /// x, or relu(scale·x + shift). Scale and shift are of x's type: no engine takes wider ones.
  Attributes loaded() {
    const Attributes x = input(GraphTensor::kX, channels_last(spec_.x));
    if (!norms_on_load(spec_.kind)) return x;
    const auto channels = [&](GraphTensor id) { return per_channel(id, spec_.x[3], type_of(spec_.dtype)); };
    const Attributes scaled = graph_.pointwise(x, channels(GraphTensor::kScale), pointwise(fe::PointwiseMode_t::MUL));
    const Attributes shifted = graph_.pointwise(scaled, channels(GraphTensor::kShift), pointwise(fe::PointwiseMode_t::ADD));
    return graph_.pointwise(shifted, pointwise(fe::PointwiseMode_t::RELU_FWD));
  }

  void convolution() {
    Attributes y = graph_.conv_fprop(loaded(), input(GraphTensor::kWeight, weight()), window<fe::graph::Conv_fprop_attributes>());
    if (spec_.kind == GraphKind::kConvolutionBias)
      y = graph_.pointwise(y, per_channel(GraphTensor::kBias, spec_.y[3]), pointwise(fe::PointwiseMode_t::ADD));
    output(y, GraphTensor::kY, channels_last(spec_.y));
    if (spec_.kind != GraphKind::kConvolutionStatistics && spec_.kind != GraphKind::kNormConvolutionStatistics) return;
    auto [sum, square_sum] = graph_.genstats(y, fe::graph::Genstats_attributes());
    per_channel_output(sum, GraphTensor::kSum);
    per_channel_output(square_sum, GraphTensor::kSquareSum);
  }

  void backward_data() {
    const Layout layout = channels_last(spec_.x);
    Attributes dx = graph_.conv_dgrad(input(GraphTensor::kDy, channels_last(spec_.y)), input(GraphTensor::kWeight, weight()),
                                      window<fe::graph::Conv_dgrad_attributes>());
    if (spec_.kind == GraphKind::kConvolutionBackwardDataNorm) {
      dx->set_dim(layout.dim);
      const Attributes x = input(GraphTensor::kX, layout), mean = per_channel(GraphTensor::kMean),
                       inv_std = per_channel(GraphTensor::kInvStd), gamma = per_channel(GraphTensor::kGamma);
      const Attributes unit =
          graph_.pointwise(graph_.pointwise(x, mean, pointwise(fe::PointwiseMode_t::SUB)), inv_std, pointwise(fe::PointwiseMode_t::MUL));
      const Attributes norm = graph_.pointwise(graph_.pointwise(unit, gamma, pointwise(fe::PointwiseMode_t::MUL)),
                                               per_channel(GraphTensor::kBeta), pointwise(fe::PointwiseMode_t::ADD));
      dx = graph_.pointwise(dx, norm, pointwise(fe::PointwiseMode_t::RELU_BWD));
      const auto sums = graph_.dbn_weight(dx, x, mean, inv_std, gamma, fe::graph::DBN_weight_attributes());
      constexpr GraphTensor kSums[] = {GraphTensor::kDgamma, GraphTensor::kDbeta, GraphTensor::kDyFactor, GraphTensor::kXFactor,
                                       GraphTensor::kOffset};
      for (std::size_t i = 0; i < sums.size(); ++i) per_channel_output(sums[i], kSums[i]);
    }
    output(dx, GraphTensor::kDx, layout);
  }

  void backward_weights() {
    const Attributes dweight =
        graph_.conv_wgrad(input(GraphTensor::kDy, channels_last(spec_.y)), loaded(), window<fe::graph::Conv_wgrad_attributes>());
    output(dweight, GraphTensor::kDweight, weight());
  }

  void batch_norm() {
    Attributes epsilon = graph_.tensor(spec_.eps);
    auto [y, mean, inv_std, next_mean, next_var] =
        graph_.batchnorm(input(GraphTensor::kX, channels_last(spec_.x)), per_channel(GraphTensor::kGamma), per_channel(GraphTensor::kBeta),
                         fe::graph::Batchnorm_attributes().set_epsilon(epsilon));
    per_channel_output(mean, GraphTensor::kMean);
    per_channel_output(inv_std, GraphTensor::kInvStd);
    if (spec_.residual) {
      y = graph_.pointwise(y, input(GraphTensor::kResidual, channels_last(spec_.x)), pointwise(fe::PointwiseMode_t::ADD));
    }
    if (spec_.relu) y = graph_.pointwise(y, pointwise(fe::PointwiseMode_t::RELU_FWD));
    output(y, GraphTensor::kY, channels_last(spec_.x));
  }

  void batch_norm_backward() {
    const Layout layout = channels_last(spec_.x);
    const Attributes x = input(GraphTensor::kX, layout), gamma = per_channel(GraphTensor::kGamma);
    const Attributes mean = per_channel(GraphTensor::kMean), inv_std = per_channel(GraphTensor::kInvStd);
    Attributes g = input(GraphTensor::kDy, layout);
    if (spec_.second_term) g = graph_.pointwise(g, input(GraphTensor::kDy2, layout), pointwise(fe::PointwiseMode_t::ADD));
    if (spec_.relu) {
      const Attributes y =
          graph_.batchnorm_inference(x, mean, inv_std, gamma, per_channel(GraphTensor::kBeta), fe::graph::Batchnorm_inference_attributes());
      g = graph_.pointwise(g, y, pointwise(fe::PointwiseMode_t::RELU_BWD));
    }
    auto [dx, dgamma, dbeta] =
        graph_.batchnorm_backward(g, x, gamma, fe::graph::Batchnorm_backward_attributes().set_saved_mean_and_inv_variance(mean, inv_std));
    output(dx, GraphTensor::kDx, layout);
    per_channel_output(dgamma, GraphTensor::kDgamma);
    per_channel_output(dbeta, GraphTensor::kDbeta);
  }

  OpenGraph& graph_;
  const GraphSpec& spec_;
};

/// cuDNN's handle on the device of the thread that makes it.
class Handle {
 public:
  Handle() { check(cudnnCreate(&handle_), "cannot open cuDNN on this device"); }
  ~Handle() { cudnnDestroy(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cudnnHandle_t get() const { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};

class Plan final : public GraphPlan {
 public:
  /// Without a handle the graph is for `described` and cannot run.
  Plan(const GraphSpec& spec, const PlanRules& rules, std::shared_ptr<Handle> handle, std::shared_ptr<const fe::DeviceProperties> described,
       std::string& why)
      : spec_(spec), handle_(std::move(handle)) {
#if defined(STARLING_CUDNN_RETENTION)
    // Otherwise each CUDA graph would hold a reference to each plan that was compiled at run time, which makes its launch slower. Plans
    // live as long as the backend, which no graph outlives.
    graph_.set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);
#endif
    GraphBuilder(graph_, spec_).build();
    if (described) graph_.set_device_properties(described);
    fe::error_t status = graph_.validate();
    if (status.is_good()) status = handle_ ? graph_.build_operation_graph(handle_->get()) : graph_.build_operation_graph();
    if (status.is_good()) status = graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (status.is_bad()) {
      why = message_of(status);
      return;
    }
    std::vector<fe::NumericalNote_t> unwanted{fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION};
    if (spec_.dtype == DType::kFloat32) {
      if (!rules.tf32) unwanted.push_back(fe::NumericalNote_t::TENSOR_CORE);
      if (!rules.tf32) unwanted.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
    }
    if (rules.deterministic) unwanted.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
    graph_.deselect_numeric_notes(unwanted);
    graph_.deselect_workspace_greater_than(static_cast<std::int64_t>(rules.workspace));
    candidates_ = graph_.supported();
    if (candidates_.empty()) why = fmt::format("none of its {} engines keeps the rules", graph_.get_execution_plan_count());
  }

  int candidates() const override { return static_cast<int>(candidates_.size()); }

  std::string name(int candidate) const override {
    std::string name;
    return graph_.get_plan_name_at_index(at(candidate), name).is_good() ? name : "unnamed";
  }

  bool finalise(int candidate, std::string& why) override {
    const fe::error_t status = graph_.build_plan_at_index(at(candidate));
    if (status.is_bad()) why = message_of(status);
    return status.is_good();
  }

  std::size_t workspace(int candidate) const override {
    const std::int64_t bytes = graph_.get_workspace_size_plan_at_index(at(candidate));
    require(bytes >= 0, "cudnn", "{}: cuDNN does not tell the workspace", text(spec_));
    return static_cast<std::size_t>(bytes);
  }

  void run(int candidate, const Bindings& bindings, void* workspace, StreamHandle stream) override {
    require(handle_ != nullptr, "cudnn", "{}: a plan for a described device cannot run", text(spec_));
    // One handle for all streams, also where a captured backward pass goes to and fro between two (core/autograd.h): setting the stream
    // says where the next call goes, and what priority cuDNN's own streams have, the same for those two. Calls come from one thread,
    // workspaces are the stream's own, and order between streams is by the backend's events alone. A cuDNN that refused the change in a
    // capture would cost the branch, not the graph (apps/trainer/device/step_graphs.h).
    check(cudnnSetStream(handle_->get(), static_cast<cudaStream_t>(stream)), "cannot set the stream");
    pointers_.clear();
    for (const Binding& binding : bindings) pointers_.emplace(static_cast<std::int64_t>(binding.tensor), binding.data);
    const fe::error_t status = graph_.execute_plan_at_index(handle_->get(), pointers_, workspace, at(candidate));
    if (status.is_bad()) fail(ExitCode::kInternal, "cudnn", "{}: {}", text(spec_), message_of(status));
  }

  double milliseconds(StreamHandle stream, const std::function<void()>& work) override {
    const auto device_stream = static_cast<cudaStream_t>(stream);
    const Mark begin, end;
    check(cudaEventRecord(begin.event, device_stream), "cannot time a convolution");
    work();
    check(cudaEventRecord(end.event, device_stream), "cannot time a convolution");
    check(cudaEventSynchronize(end.event), "cannot time a convolution");
    float elapsed = 0.0f;
    check(cudaEventElapsedTime(&elapsed, begin.event, end.event), "cannot time a convolution");
    return static_cast<double>(elapsed);
  }

 private:
  struct Mark {
    Mark() { check(cudaEventCreate(&event), "cannot time a convolution"); }
    ~Mark() { cudaEventDestroy(event); }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    cudaEvent_t event = nullptr;
  };
  std::int64_t at(int candidate) const { return candidates_.at(static_cast<std::size_t>(candidate)); }

  GraphSpec spec_;
  std::shared_ptr<Handle> handle_;
  OpenGraph graph_;
  std::vector<std::int64_t> candidates_;  ///< indices of the graph's engines
  std::unordered_map<std::int64_t, void*> pointers_;
};

class Maker final : public GraphMaker {
 public:
  Maker(std::shared_ptr<Handle> handle, std::shared_ptr<const fe::DeviceProperties> described)
      : handle_(std::move(handle)), described_(std::move(described)) {}

  std::unique_ptr<GraphPlan> plan(const GraphSpec& spec, const PlanRules& rules, std::string& why) override {
    return std::make_unique<Plan>(spec, rules, handle_, described_, why);
  }
  std::string version() const override {
    const std::size_t version = cudnnGetVersion();
    return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

 private:
  std::shared_ptr<Handle> handle_;
  std::shared_ptr<const fe::DeviceProperties> described_;
};

}  // namespace

std::unique_ptr<GraphMaker> make_device_graphs() { return std::make_unique<Maker>(std::make_shared<Handle>(), nullptr); }

std::unique_ptr<GraphMaker> make_described_graphs(std::string_view json) {
  auto properties = std::make_shared<fe::DeviceProperties>();
  const fe::error_t status = properties->deserialize({json.begin(), json.end()});
  if (status.is_bad()) fail(ExitCode::kUsage, "cudnn", "the device's description is not understood: {}", message_of(status));
  return std::make_unique<Maker>(nullptr, std::move(properties));
}

}  // namespace starling::cuda
