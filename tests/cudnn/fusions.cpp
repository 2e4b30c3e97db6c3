#include "tests/cudnn/fusions.h"

#include <cudnn_frontend.h>

#include <functional>
#include <memory>
#include <utility>

#include "core/error.h"

namespace starling::testing {

namespace fe = cudnn_frontend;

namespace {

using fe::graph::Graph;
using fe::graph::Pointwise_attributes;
using fe::graph::Tensor_attributes;
using Attributes = std::shared_ptr<Tensor_attributes>;
using fe::PointwiseMode_t;

constexpr std::int64_t kBatch = 256, kChannels = 64, kSize = 56;

Attributes image(Graph& g, std::int64_t size = kSize) {
  return g.tensor(
      Tensor_attributes().set_dim({kBatch, kChannels, size, size}).set_stride({kChannels * size * size, 1, kChannels * size, kChannels}));
}
Attributes weight(Graph& g) {
  return g.tensor(Tensor_attributes().set_dim({kChannels, kChannels, 3, 3}).set_stride({kChannels * 9, 1, kChannels * 3, kChannels}));
}
Attributes channels(Graph& g, fe::DataType_t type = fe::DataType_t::FLOAT) {
  return g.tensor(Tensor_attributes().set_dim({1, kChannels, 1, 1}).set_stride({kChannels, 1, kChannels, kChannels}).set_data_type(type));
}
Pointwise_attributes mode(PointwiseMode_t what) { return Pointwise_attributes().set_mode(what); }
template <class A>
A window() {
  return A().set_padding({1, 1}).set_stride({1, 1}).set_dilation({1, 1});
}
void fp32_output(const Attributes& tensor) { tensor->set_output(true).set_data_type(fe::DataType_t::FLOAT); }

Attributes scale_bias_relu(Graph& g, const Attributes& x, fe::DataType_t type) {
  const Attributes scaled = g.pointwise(x, channels(g, type), mode(PointwiseMode_t::MUL));
  const Attributes shifted = g.pointwise(scaled, channels(g, type), mode(PointwiseMode_t::ADD));
  return g.pointwise(shifted, mode(PointwiseMode_t::RELU_FWD));
}
void statistics(Graph& g, const Attributes& y) {
  auto [sum, squares] = g.genstats(y, fe::graph::Genstats_attributes());
  fp32_output(sum);
  fp32_output(squares);
}
Attributes convolution(Graph& g, const Attributes& x) { return g.conv_fprop(x, weight(g), window<fe::graph::Conv_fprop_attributes>()); }
/// The batch norm's output, found again from its input.
Attributes normalised(Graph& g, const Attributes& x, const Attributes& mean, const Attributes& inv_std, const Attributes& gamma) {
  const Attributes centred = g.pointwise(x, mean, mode(PointwiseMode_t::SUB));
  const Attributes unit = g.pointwise(centred, inv_std, mode(PointwiseMode_t::MUL));
  const Attributes scaled = g.pointwise(unit, gamma, mode(PointwiseMode_t::MUL));
  return g.pointwise(scaled, channels(g), mode(PointwiseMode_t::ADD));
}

int engines_of(const std::shared_ptr<const fe::DeviceProperties>& device, fe::DataType_t type, bool narrow,
               const std::function<void(Graph&)>& make) {
  Graph g;
  g.set_io_data_type(type).set_intermediate_data_type(narrow ? type : fe::DataType_t::FLOAT).set_compute_data_type(fe::DataType_t::FLOAT);
  g.set_device_properties(device);
  make(g);
  auto status = g.validate();
  if (status.is_good()) status = g.build_operation_graph();
  if (status.is_good()) status = g.create_execution_plans({fe::HeurMode_t::A});
  return status.is_good() ? static_cast<int>(g.get_execution_plan_count()) : 0;
}

}  // namespace

std::vector<Fusion> plan_fusions(std::string_view device_json, DType dtype, bool ampere) {
  auto device = std::make_shared<fe::DeviceProperties>();
  require(device->deserialize({device_json.begin(), device_json.end()}).is_good(), "test", "the device's description is not understood");
  const fe::DataType_t type = dtype == DType::kFloat16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16;
  const bool fp16 = dtype == DType::kFloat16;
  std::vector<Fusion> fusions;
  const auto add = [&](const char* name, bool expected, bool narrow, const std::function<void(Graph&)>& make) {
    fusions.push_back({name, engines_of(device, type, narrow, make), expected});
  };
  add("convolution -> statistics", fp16, false, [&](Graph& g) {
    const Attributes y = convolution(g, image(g));
    y->set_output(true);
    statistics(g, y);
  });
  add("scale, bias, ReLU -> convolution -> statistics", fp16, false, [&](Graph& g) {
    const Attributes y = convolution(g, scale_bias_relu(g, image(g), type));
    y->set_output(true);
    statistics(g, y);
  });
  add("scale, bias, ReLU -> convolution", fp16 && ampere, false,
      [&](Graph& g) { convolution(g, scale_bias_relu(g, image(g), type))->set_output(true); });
  add("scale, bias, ReLU -> weight gradient", fp16, false, [&](Graph& g) {
    const Attributes x = scale_bias_relu(g, image(g), type);
    g.conv_wgrad(image(g), x, window<fe::graph::Conv_wgrad_attributes>())
        ->set_output(true)
        .set_dim({kChannels, kChannels, 3, 3})
        .set_stride({kChannels * 9, 1, kChannels * 3, kChannels});
  });
  add("weight gradient with fp32 output", false, false, [&](Graph& g) {
    g.conv_wgrad(image(g), image(g), window<fe::graph::Conv_wgrad_attributes>())
        ->set_output(true)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({kChannels, kChannels, 3, 3})
        .set_stride({kChannels * 9, 1, kChannels * 3, kChannels});
  });
  add("data gradient + ReLU backward", true, false, [&](Graph& g) {
    const Attributes dx = g.conv_dgrad(image(g), weight(g), window<fe::graph::Conv_dgrad_attributes>());
    dx->set_dim({kBatch, kChannels, kSize, kSize});
    g.pointwise(dx, image(g), mode(PointwiseMode_t::RELU_BWD))->set_output(true);
  });
  add("data gradient + ReLU backward + batch norm's sums", fp16, false, [&](Graph& g) {
    const Attributes dx = g.conv_dgrad(image(g), weight(g), window<fe::graph::Conv_dgrad_attributes>());
    dx->set_dim({kBatch, kChannels, kSize, kSize});
    const Attributes x = image(g), mean = channels(g), inv_std = channels(g), gamma = channels(g);
    const Attributes masked = g.pointwise(dx, normalised(g, x, mean, inv_std, gamma), mode(PointwiseMode_t::RELU_BWD));
    masked->set_output(true);
    auto outputs = g.dbn_weight(masked, x, mean, inv_std, gamma, fe::graph::DBN_weight_attributes());
    for (const Attributes& output : outputs) fp32_output(output);
  });
  add("convolution + scale, bias, add, ReLU (inference)", true, false, [&](Graph& g) {
    const Attributes y = g.pointwise(convolution(g, image(g)), channels(g), mode(PointwiseMode_t::MUL));
    const Attributes shifted = g.pointwise(y, channels(g), mode(PointwiseMode_t::ADD));
    const Attributes sum = g.pointwise(shifted, image(g), mode(PointwiseMode_t::ADD));
    g.pointwise(sum, mode(PointwiseMode_t::RELU_FWD))->set_output(true);
  });
  add("batch norm + add + ReLU with its bit mask", true, false, [&](Graph& g) {
    Attributes epsilon = g.tensor(1e-5f);
    auto [y, mean, inv_std, next_mean, next_var] =
        g.batchnorm(image(g), channels(g), channels(g), fe::graph::Batchnorm_attributes().set_epsilon(epsilon));
    fp32_output(mean);
    fp32_output(inv_std);
    const Attributes sum = g.pointwise(y, image(g), mode(PointwiseMode_t::ADD));
    const Attributes relu = g.pointwise(sum, mode(PointwiseMode_t::RELU_FWD));
    relu->set_output(true);
    const Attributes mask = g.pointwise(relu, g.tensor(0.0f), mode(PointwiseMode_t::CMP_GT));
    mask->set_output(true).set_data_type(fe::DataType_t::BOOLEAN);
  });
  add("bit mask, sum of two terms -> batch norm backward", true, true, [&](Graph& g) {
    const Attributes mask = image(g);
    mask->set_data_type(fe::DataType_t::BOOLEAN);
    const Attributes sum = g.pointwise(image(g), image(g), mode(PointwiseMode_t::ADD));
    const Attributes masked = g.pointwise(sum, mask, mode(PointwiseMode_t::MUL));
    masked->set_output(true);
    auto [dx, dgamma, dbeta] =
        g.batchnorm_backward(masked, image(g), channels(g),
                             fe::graph::Batchnorm_backward_attributes().set_saved_mean_and_inv_variance(channels(g), channels(g)));
    dx->set_output(true);
    fp32_output(dgamma);
    fp32_output(dbeta);
  });
  return fusions;
}

}  // namespace starling::testing
