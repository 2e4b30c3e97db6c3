#include "apps/bench/conv_bound.h"

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "apps/bench/support.h"
#include "kernels/cpu/dnnl_compat.h"

namespace starling {

namespace {

using dnnl::memory;
namespace compat = cpu::dnnl_compat;

/// A oneDNN primitive and its arguments.
struct Job {
  dnnl::primitive primitive;
  std::unordered_map<int, memory> arguments;
  double seconds(dnnl::stream& stream) {
    return seconds_of([&] {
      primitive.execute(stream, arguments);
      stream.wait();
    });
  }
};

compat::ConvolutionDescs describe(const ConvShape& c, memory::format_tag activations) {
  const auto f32 = memory::data_type::f32;
  const std::int64_t groups = c.window.groups;
  compat::ConvolutionDescs d;
  d.src = memory::desc({c.x[0], c.x[3], c.x[1], c.x[2]}, f32, activations);
  const memory::dims weights{c.weight[0], c.weight[3], c.weight[1], c.weight[2]};
  d.weights = groups == 1
                  ? memory::desc(weights, f32, memory::format_tag::any)
                  : memory::desc({groups, weights[0] / groups, weights[1], weights[2], weights[3]},
                                 f32, memory::format_tag::any);
  d.dst = memory::desc({c.y[0], c.y[3], c.y[1], c.y[2]}, f32, activations);
  d.strides = {c.window.stride[0], c.window.stride[1]};
  d.dilates = {c.window.dilation[0] - 1, c.window.dilation[1] - 1};
  d.padding = {c.window.padding[0], c.window.padding[1]};
  return d;
}

}  // namespace

struct ConvBound::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<Job> jobs;

  memory filled(const memory::desc& desc) const {
    memory m(desc, engine);
    float* data = static_cast<float*>(m.get_data_handle());
    for (std::size_t i = 0; i < desc.get_size() / sizeof(float); ++i)
      data[i] = 0.01f * static_cast<float>(i % 89) - 0.4f;
    return m;
  }

  enum Direction { kForward, kData, kWeights };
  Job make(const ConvShape& shape, Direction direction, memory::format_tag activations) const {
    const auto d = describe(shape, activations);
    const auto forward = compat::forward(engine, d, {});
    if (direction == kForward) {
      return {dnnl::convolution_forward(forward),
              {{DNNL_ARG_SRC, filled(forward.src_desc())},
               {DNNL_ARG_WEIGHTS, filled(forward.weights_desc())},
               {DNNL_ARG_DST, filled(forward.dst_desc())}}};
    }
    if (direction == kData) {
      const auto backward = compat::backward_data(engine, d, forward, {});
      return {dnnl::convolution_backward_data(backward),
              {{DNNL_ARG_DIFF_SRC, filled(backward.diff_src_desc())},
               {DNNL_ARG_WEIGHTS, filled(backward.weights_desc())},
               {DNNL_ARG_DIFF_DST, filled(backward.diff_dst_desc())}}};
    }
    const auto backward = compat::backward_weights(engine, d, forward, {});
    return {dnnl::convolution_backward_weights(backward),
            {{DNNL_ARG_SRC, filled(backward.src_desc())},
             {DNNL_ARG_DIFF_WEIGHTS, filled(backward.diff_weights_desc())},
             {DNNL_ARG_DIFF_DST, filled(backward.diff_dst_desc())}}};
  }

  /// Adds the faster of N×H×W×C and oneDNN's preferred activation format.
  void add(const ConvShape& shape, Direction direction) {
    Job best = make(shape, direction, memory::format_tag::nhwc);
    if (shape.x[3] > 4) {  // with 3 channels "any" selects oneDNN's reference code
      Job own = make(shape, direction, memory::format_tag::any);
      const auto time = [&](Job& job) {
        job.seconds(stream);
        return std::min(job.seconds(stream), job.seconds(stream));
      };
      if (time(own) < time(best)) best = std::move(own);
    }
    jobs.push_back(std::move(best));
  }
};

ConvBound::ConvBound(const std::vector<ConvShape>& convolutions)
    : state_(std::make_unique<State>()) {
  for (const ConvShape& shape : convolutions) {
    state_->add(shape, State::kForward);
    if (shape.backward_data) state_->add(shape, State::kData);
    state_->add(shape, State::kWeights);
  }
}

ConvBound::~ConvBound() = default;

double ConvBound::run() {
  double seconds = 0.0;
  for (Job& job : state_->jobs) seconds += job.seconds(state_->stream);
  return seconds;
}

}  // namespace starling
