#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/operations/rows.h"

// Batch and layer normalisation.
namespace starling::tests {

Operation batch_norm(Index rows, Index channels, bool relu, bool residual, bool affine, MaskFrom mask, double ceiling) {
  Operation op;
  op.name = fmt::format("batch norm {}x{}{}{}{}{}", rows, channels, affine ? "" : ", plain", residual ? ", residual" : "",
                        relu ? ", relu" : "", mask == MaskFrom::kInput ? ", mask from x" : "");
  if (ceiling != kNoCeiling) op.name += fmt::format(", up to {}", ceiling);
  op.inputs = {{rows, channels}};
  if (affine) op.inputs.insert(op.inputs.end(), {Shape{channels}, Shape{channels}});
  if (residual) op.inputs.push_back({rows, channels});
  op.outputs = {{rows, channels}, {channels}, {channels}};  // y and the running statistics
  const std::size_t r = affine ? 3 : 1;
  op.input_roles.assign(op.inputs.size(), Role::kActivation);
  if (affine) op.input_roles[1] = op.input_roles[2] = Role::kParameter;
  op.output_roles = {Role::kActivation, Role::kParameter, Role::kParameter};
  // The rates here count y in both walks of the backward pass; what the operation says of itself lets the second one read dresidual
  // instead.
  if (residual && relu && mask == MaskFrom::kOutput) op.backward_again = count(op.inputs[0]);
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    if (saved.empty()) {
      const DType statistics = parameter_dtype(in[0].dtype());
      saved = {Tensor(b, {channels}, statistics), Tensor(b, {channels}, statistics)};
      b.fill(out[1], 0.5);
      b.fill(out[2], 2.0);
    }
    BatchNormForward args{
        .x = in[0], .y = out[0], .running_mean = out[1], .running_var = out[2], .saved_mean = saved[0], .saved_inv_std = saved[1]};
    if (affine) args.gamma = in[1];
    if (affine) args.beta = in[2];
    if (residual) args.residual = in[r];
    args.relu = relu;
    args.ceiling = ceiling;
    b.batch_norm_forward(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index c = 0; c < channels; ++c) {
      double mean = 0, variance = 0;
      for (Index i = 0; i < rows; ++i) mean += in[0][at(i * channels + c)] / static_cast<double>(rows);
      for (Index i = 0; i < rows; ++i) variance += std::pow(in[0][at(i * channels + c)] - mean, 2) / static_cast<double>(rows);
      for (Index i = 0; i < rows; ++i) {
        double value = (in[0][at(i * channels + c)] - mean) / std::sqrt(variance + 1e-5);
        if (affine) value = value * in[1][at(c)] + in[2][at(c)];
        if (residual) value += in[r][at(i * channels + c)];
        out[0][at(i * channels + c)] = relu ? std::min(std::max(value, 0.0), ceiling) : value;
      }
      const double n = static_cast<double>(rows);
      out[1][at(c)] = 0.9 * 0.5 + 0.1 * mean;
      out[2][at(c)] = 0.9 * 2.0 + 0.1 * (rows > 1 ? variance * n / (n - 1) : variance);
    }
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors& out, const Tensors& saved, const Tensor& dy, const Tensors& d) {
    BatchNormBackward args{.x = in[0], .y = out[0], .dy = dy, .saved_mean = saved[0], .saved_inv_std = saved[1], .dx = d[0], .relu = relu};
    if (affine) args.gamma = in[1];
    if (affine) args.dgamma = d[1];
    if (affine) args.dbeta = d[2];
    if (residual) args.dresidual = d[r];
    if (mask == MaskFrom::kInput) {
      args.beta = in[2];
      args.y = Tensor();
    }
    args.ceiling = ceiling;
    b.batch_norm_backward(args);
  };
  op.tolerance = 3e-5;
  return op;
}

Operation layer_norm(Index rows, Index channels) {
  Operation op;
  op.name = fmt::format("layer norm {}x{}", rows, channels);
  op.inputs = {{rows, channels}, {channels}, {channels}};
  op.outputs = {{rows, channels}};
  op.input_roles = {Role::kActivation, Role::kParameter, Role::kParameter};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    const DType statistics = parameter_dtype(in[0].dtype());
    if (saved.empty()) saved = {Tensor(b, {rows}, statistics), Tensor(b, {rows}, statistics)};
    b.layer_norm_forward(
        {.x = in[0], .gamma = in[1], .beta = in[2], .y = out[0], .saved_mean = saved[0], .saved_inv_std = saved[1], .eps = 1e-3});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < rows; ++i) {
      double mean = 0, variance = 0;
      for (Index c = 0; c < channels; ++c) mean += in[0][at(i * channels + c)] / static_cast<double>(channels);
      for (Index c = 0; c < channels; ++c) variance += std::pow(in[0][at(i * channels + c)] - mean, 2) / static_cast<double>(channels);
      for (Index c = 0; c < channels; ++c) {
        out[0][at(i * channels + c)] = (in[0][at(i * channels + c)] - mean) / std::sqrt(variance + 1e-3) * in[1][at(c)] + in[2][at(c)];
      }
    }
  };
  op.backward = [](Backend& b, const Tensors& in, const Tensors&, const Tensors& saved, const Tensor& dy, const Tensors& d) {
    b.layer_norm_backward({.x = in[0],
                           .dy = dy,
                           .gamma = in[1],
                           .saved_mean = saved[0],
                           .saved_inv_std = saved[1],
                           .dx = d[0],
                           .dgamma = d[1],
                           .dbeta = d[2]});
  };
  op.tolerance = 3e-5;
  return op;
}

}  // namespace starling::tests
