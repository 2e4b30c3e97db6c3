#include "kernels/cuda/libraries/cudnn_graphs.h"

#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"

namespace starling::cuda {

namespace fe = cudnn_frontend;

namespace {

using fe::graph::Tensor_attributes;
using Attributes = std::shared_ptr<Tensor_attributes>;

/// cuDNN's message, reduced to one line.
std::string message_of(fe::error_t status) {
  std::string text = status.get_message();
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > 300) text.resize(300);
  return text;
}

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS)
    fail(ExitCode::kInternal, "cudnn", "{}: {}", what, cudnnGetErrorString(status));
}
void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    fail(ExitCode::kInternal, "cudnn", "{}: {}", what, cudaGetErrorString(status));
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

/// The frontend's graph, with access to its list of engines.
class OpenGraph final : public fe::graph::Graph {
 public:
  /// Engines that pass the filters, in the heuristic's order; compiles nothing.
  std::vector<std::int64_t> supported() {
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < get_execution_plan_count(); ++i) {
      if (plans.check_support_at_index(i).is_good()) indices.push_back(i);
    }
    return indices;
  }
};

class GraphBuilder {
 public:
  GraphBuilder(OpenGraph& graph, const GraphSpec& spec, const PlanRules& rules)
      : graph_(graph), spec_(spec), rules_(rules) {}

  void build() {
    graph_.set_io_data_type(type_of(spec_.dtype))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    switch (spec_.kind) {
      case GraphKind::kForward: return forward();
      case GraphKind::kBackwardData: return backward_data();
      case GraphKind::kBackwardWeights: return backward_weights();
      case GraphKind::kAttentionForward: return attention_forward();
      case GraphKind::kAttentionBackward: return attention_backward();
    }
  }

 private:
  using Sizes = std::vector<std::int64_t>;
  struct Layout {
    Sizes dim, stride;
  };
  /// Strides in cuDNN's order N, C, H, W for N×H×W×C memory.
  static Layout channels_last(const std::array<std::int64_t, 4>& s) {
    const auto [n, h, w, c] = s;
    return {{n, c, h, w}, {h * w * c, 1, w * c, c}};
  }
  /// Strides for O×kH×kW×I memory.
  Layout weight() const {
    return channels_last({spec_.y[3], spec_.kernel[0], spec_.kernel[1], spec_.x[3] / spec_.groups});
  }

  Attributes input(GraphTensor id, const Layout& layout) {
    return graph_.tensor(Tensor_attributes()
                             .set_uid(static_cast<std::int64_t>(id))
                             .set_dim(layout.dim)
                             .set_stride(layout.stride));
  }
  static void output(const Attributes& tensor, GraphTensor id, const Layout& layout) {
    tensor->set_output(true)
        .set_uid(static_cast<std::int64_t>(id))
        .set_dim(layout.dim)
        .set_stride(layout.stride);
  }
  template <class A>
  A window() const {
    const auto list = [](const std::array<std::int64_t, 2>& pair) {
      return Sizes(pair.begin(), pair.end());
    };
    return A()
        .set_padding(list(spec_.padding))
        .set_stride(list(spec_.stride))
        .set_dilation(list(spec_.dilation));
  }

  void forward() {
    output(graph_.conv_fprop(input(GraphTensor::kX, channels_last(spec_.x)),
                             input(GraphTensor::kWeight, weight()),
                             window<fe::graph::Conv_fprop_attributes>()),
           GraphTensor::kY, channels_last(spec_.y));
  }
  void backward_data() {
    output(graph_.conv_dgrad(input(GraphTensor::kDy, channels_last(spec_.y)),
                             input(GraphTensor::kWeight, weight()),
                             window<fe::graph::Conv_dgrad_attributes>()),
           GraphTensor::kDx, channels_last(spec_.x));
  }
  void backward_weights() {
    output(graph_.conv_wgrad(input(GraphTensor::kDy, channels_last(spec_.y)),
                             input(GraphTensor::kX, channels_last(spec_.x)),
                             window<fe::graph::Conv_wgrad_attributes>()),
           GraphTensor::kDweight, weight());
  }

  /// A tensor of attention with these sizes; `i`: index in AttentionGraph::strides.
  Layout heads(const std::array<std::int64_t, 4>& sizes, std::size_t i) const {
    const auto [sample, head, place] = spec_.attention.strides[i];
    return {Sizes(sizes.begin(), sizes.end()), {sample, head, place, 1}};
  }
  /// The log-sum-exps, N×H×T×1.
  Layout stats() const {
    const auto [n, h, t, d] = spec_.x;
    return {{n, h, t, 1}, {h * t, t, 1, 1}};
  }
  template <class A>
  A attention() {
    const AttentionGraph& graph = spec_.attention;
    A attributes;
    attributes.set_attn_scale(graph.scale);
    if (graph.places.causal) attributes.set_causal_mask(true);
    if (graph.places.window > 0)
      attributes.set_diagonal_band_left_bound(static_cast<int>(graph.places.window));
    if (graph.mask[2] > 0)
      attributes.set_bias(
          input(GraphTensor::kMask, {Sizes(graph.mask.begin(), graph.mask.end()),
                                     Sizes(graph.mask_stride.begin(), graph.mask_stride.end())}));
    return attributes;
  }
  void attention_forward() {
    auto attributes = attention<fe::graph::SDPA_attributes>();
    attributes.set_generate_stats(true);
    const auto [y, sums] = graph_.sdpa(input(GraphTensor::kQ, heads(spec_.x, 0)),
                                       input(GraphTensor::kK, heads(spec_.y, 1)),
                                       input(GraphTensor::kV, heads(spec_.y, 2)), attributes);
    output(y, GraphTensor::kY, heads(spec_.x, 3));
    output(sums, GraphTensor::kStats, stats());
    sums->set_data_type(fe::DataType_t::FLOAT);
  }
  void attention_backward() {
    auto attributes = attention<fe::graph::SDPA_backward_attributes>();
    attributes.set_deterministic_algorithm(rules_.deterministic);
    const Attributes sums = input(GraphTensor::kStats, stats());
    sums->set_data_type(fe::DataType_t::FLOAT);
    const auto [dq, dk, dv] = graph_.sdpa_backward(
        input(GraphTensor::kQ, heads(spec_.x, 0)), input(GraphTensor::kK, heads(spec_.y, 1)),
        input(GraphTensor::kV, heads(spec_.y, 2)), input(GraphTensor::kY, heads(spec_.x, 3)),
        input(GraphTensor::kDy, heads(spec_.x, 4)), sums, attributes);
    output(dq, GraphTensor::kDq, heads(spec_.x, 5));
    output(dk, GraphTensor::kDk, heads(spec_.y, 6));
    output(dv, GraphTensor::kDv, heads(spec_.y, 7));
  }

  OpenGraph& graph_;
  const GraphSpec& spec_;
  const PlanRules& rules_;
};

/// cuDNN's handle for the current device of the calling thread.
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

/// A device that is only described, and ten times its compute capability, which graphs of attention
/// need.
struct Described {
  std::shared_ptr<const fe::DeviceProperties> properties;
  int capability = 0;
};

class Plan final : public GraphPlan {
 public:
  /// Plans a graph; without a handle for the `described` device, and then it cannot run.
  Plan(const GraphSpec& spec, const PlanRules& rules, std::shared_ptr<Handle> handle,
       const Described& described, std::string& why)
      : spec_(spec), handle_(std::move(handle)) {
    if (!handle_)
      graph_.set_device_properties(described.properties).set_sm_version(described.capability);
    GraphBuilder(graph_, spec_, rules).build();
    fe::error_t status = graph_.validate();
    if (status.is_good())
      status =
          handle_ ? graph_.build_operation_graph(handle_->get()) : graph_.build_operation_graph();
    if (status.is_good())
      status = graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
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
    if (candidates_.empty())
      why = fmt::format("none of its {} engines satisfies the settings",
                        graph_.get_execution_plan_count());
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
    require(bytes >= 0, "cudnn", "{}: cuDNN does not return the workspace size", text(spec_));
    return static_cast<std::size_t>(bytes);
  }

  void run(int candidate, const Bindings& bindings, void* workspace, StreamHandle stream) override {
    require(handle_ != nullptr, "cudnn", "{}: a plan for a described device cannot run",
            text(spec_));
    // One handle for all streams, even if a captured backward pass alternates between two
    // (core/autograd.h): setting the stream determines where the next call goes, and the priority
    // of cuDNN's internal streams, which is the same for both. All calls come from one thread,
    // workspaces belong to a stream, and only the backend's events order streams. If cuDNN refused
    // a change of streams during a capture, only the branch would be lost, not the graph
    // (apps/training/device/step_graphs.h).
    check(cudnnSetStream(handle_->get(), static_cast<cudaStream_t>(stream)),
          "cannot set the stream");
    pointers_.clear();
    for (const Binding& binding : bindings)
      pointers_.emplace(static_cast<std::int64_t>(binding.tensor), binding.data);
    const fe::error_t status =
        graph_.execute_plan_at_index(handle_->get(), pointers_, workspace, at(candidate));
    if (status.is_bad())
      fail(ExitCode::kInternal, "cudnn", "{}: {}", text(spec_), message_of(status));
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
  std::int64_t at(int candidate) const {
    return candidates_.at(static_cast<std::size_t>(candidate));
  }

  GraphSpec spec_;
  std::shared_ptr<Handle> handle_;
  OpenGraph graph_;
  std::vector<std::int64_t> candidates_;  ///< indices of the graph's engines
  std::unordered_map<std::int64_t, void*> pointers_;
};

class Maker final : public GraphMaker {
 public:
  Maker(std::shared_ptr<Handle> handle, Described described)
      : handle_(std::move(handle)), described_(std::move(described)) {}

  std::unique_ptr<GraphPlan> plan(const GraphSpec& spec, const PlanRules& rules,
                                  std::string& why) override {
    return std::make_unique<Plan>(spec, rules, handle_, described_, why);
  }
  std::string version() const override {
    const std::size_t version = cudnnGetVersion();
    return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

 private:
  std::shared_ptr<Handle> handle_;
  Described described_;
};

}  // namespace

std::unique_ptr<GraphMaker> make_device_graphs() {
  return std::make_unique<Maker>(std::make_shared<Handle>(), Described());
}

std::unique_ptr<GraphMaker> make_described_graphs(std::string_view json) {
  auto properties = std::make_shared<fe::DeviceProperties>();
  const fe::error_t status = properties->deserialize({json.begin(), json.end()});
  if (status.is_bad())
    fail(ExitCode::kUsage, "cudnn", "the device's description is not understood: {}",
         message_of(status));
  // "deviceVer":900
  constexpr std::string_view kKey = "\"deviceVer\":";
  int version = 0;
  if (const std::size_t at = json.find(kKey); at != std::string_view::npos)
    std::from_chars(json.data() + at + kKey.size(), json.data() + json.size(), version);
  return std::make_unique<Maker>(nullptr, Described{std::move(properties), version / 10});
}

}  // namespace starling::cuda
