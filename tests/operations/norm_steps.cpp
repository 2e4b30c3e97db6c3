#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/operations/norms.h"
#include "tests/operations/rows.h"

// The steps of a batch norm, each alone.
namespace starling::tests {

namespace {

constexpr double kEps = 1e-5, kMomentum = 0.1;
constexpr double kOldMean = 0.5, kOldVariance = 2.0;

/// 1/sqrt of a variance: somewhat around one.
void make_inv_std(Numbers& numbers) {
  for (double& v : numbers) v = 1.5 + v;
}

std::string text_of_ceiling(double ceiling) {
  return ceiling == kNoCeiling ? std::string() : fmt::format(", up to {}", ceiling);
}

}  // namespace

Operation batch_norm_statistics(Index rows, Index channels) {
  Operation op;
  op.name = fmt::format("batch norm's statistics alone {}x{}", rows, channels);
  op.inputs = {{rows, channels}};
  op.outputs = {{channels}, {channels}};
  op.output_roles = {Role::kParameter, Role::kParameter};
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.batch_norm_forward({.x = in[0], .saved_mean = out[0], .saved_inv_std = out[1], .eps = kEps});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    const auto n = static_cast<double>(rows);
    Numbers squares(at(channels), 0.0);
    for (Index i = 0; i < rows * channels; ++i) out[0][at(i % channels)] += in[0][at(i)] / n;
    for (Index i = 0; i < rows * channels; ++i)
      squares[at(i % channels)] += std::pow(in[0][at(i)] - out[0][at(i % channels)], 2);
    for (std::size_t c = 0; c < at(channels); ++c)
      out[1][c] = 1.0 / std::sqrt(squares[c] / n + kEps);
  };
  return op;
}

Operation batch_norm_finish(Index channels, Index count_of_values, bool running) {
  Operation op;
  op.name = fmt::format("batch_norm_finish {} of {} values{}", channels, count_of_values,
                        running ? "" : ", alone");
  op.inputs = {{channels}, {channels}};
  op.input_roles.assign(2, Role::kExact);
  // mean, 1/sqrt(variance), running mean and variance, batches
  op.outputs.assign(4, Shape{channels});
  op.outputs.emplace_back();
  op.output_roles.assign(4, Role::kParameter);
  op.output_roles.push_back(Role::kCounter);
  op.loose = {6};
  if (!running) op.loose.insert({4, 5});
  const auto n = static_cast<double>(count_of_values);
  op.fit = [n](std::vector<Numbers>& in) {
    for (std::size_t c = 0; c < in[0].size(); ++c)
      in[1][c] = in[0][c] * in[0][c] / n + n * (1.1 + in[1][c]);
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.fill(out[2], kOldMean);
    b.fill(out[3], kOldVariance);
    b.fill(out[4], 7.0);
    BatchNormFinish args{.sum = in[0],
                         .square_sum = in[1],
                         .saved_mean = out[0],
                         .saved_inv_std = out[1],
                         .count = count_of_values,
                         .eps = kEps,
                         .momentum = kMomentum};
    if (running) {
      args.running_mean = out[2];
      args.running_var = out[3];
      args.batches_tracked = out[4];
    }
    b.batch_norm_finish(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t c = 0; c < at(channels); ++c) {
      const double mean = in[0][c] / n, variance = in[1][c] / n - mean * mean;
      out[0][c] = mean;
      out[1][c] = 1.0 / std::sqrt(variance + kEps);
      out[2][c] = running ? (1 - kMomentum) * kOldMean + kMomentum * mean : kOldMean;
      out[3][c] = running ? (1 - kMomentum) * kOldVariance + kMomentum * variance * n / (n - 1)
                          : kOldVariance;
    }
    out[4][0] = running ? 8.0 : 7.0;
  };
  return op;
}

Operation batch_norm_backward_sums(Index rows, Index channels, const Rectifier& rectifier) {
  Operation op;
  op.name = fmt::format("batch norm's gradient, first step, {}x{}{}", rows, channels,
                        rectifier.relu ? text_of_ceiling(rectifier.ceiling) : ", no ReLU");
  op.inputs = {{rows, channels}, {rows, channels}, {channels}, {channels}, {channels}, {channels}};
  op.input_roles = {Role::kActivation, Role::kActivation, Role::kParameter,
                    Role::kParameter,  Role::kParameter,  Role::kParameter};
  op.outputs = {{rows, channels}, {channels}, {channels}};
  op.output_roles = {Role::kActivation, Role::kExact, Role::kExact};
  op.tolerance = 3e-5;
  op.fit = [](std::vector<Numbers>& in) { make_inv_std(in[3]); };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.batch_norm_backward({.x = in[0],
                           .dy = in[1],
                           .gamma = in[4],
                           .saved_mean = in[2],
                           .saved_inv_std = in[3],
                           .dresidual = out[0],
                           .beta = in[5],
                           .rectifier = rectifier,
                           .sums = BatchNormBackward::Sums::kWritten,
                           .sum_dy = out[1],
                           .sum_dy_xhat = out[2]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      const std::size_t c = i % at(channels);
      const double xhat = (in[0][i] - in[2][c]) * in[3][c];
      const double y = in[4][c] * xhat + in[5][c];
      const bool passes = !rectifier.relu || (y > 0 && y < rectifier.ceiling);
      out[0][i] = passes ? in[1][i] : 0.0;
      out[1][c] += out[0][i];
      out[2][c] += out[0][i] * xhat;
    }
  };
  return op;
}

Operation batch_norm_backward_apply(Index rows, Index channels, bool accumulate, bool affine) {
  Operation op;
  op.name = fmt::format("batch norm's gradient, second step, {}x{}{}{}", rows, channels,
                        accumulate ? ", accumulated" : "", affine ? "" : ", plain");
  op.inputs = {{rows, channels}, {rows, channels}, {channels}, {channels},
               {channels},       {channels},       {channels}};
  op.input_roles.assign(7, Role::kParameter);
  op.input_roles[0] = op.input_roles[1] = Role::kActivation;
  op.input_roles[5] = op.input_roles[6] = Role::kExact;
  op.outputs = {{rows, channels}, {channels}, {channels}};
  op.output_roles = {Role::kActivation, Role::kParameter, Role::kParameter};
  op.tolerance = 3e-5;
  if (!affine) op.loose = {2};
  op.fit = [](std::vector<Numbers>& in) { make_inv_std(in[4]); };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    if (accumulate) {
      b.fill(out[1], 0.5);
      b.fill(out[2], -0.25);
    }
    b.batch_norm_backward({.x = in[0],
                           .dy = in[1],
                           .gamma = affine ? in[2] : Tensor(),
                           .saved_mean = in[3],
                           .saved_inv_std = in[4],
                           .dx = out[0],
                           .dgamma = out[1],
                           .dbeta = out[2],
                           .accumulate = accumulate,
                           .sums = BatchNormBackward::Sums::kGiven,
                           .sum_dy = in[5],
                           .sum_dy_xhat = in[6]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    const auto n = static_cast<double>(rows);
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      const std::size_t c = i % at(channels);
      const double xhat = (in[0][i] - in[3][c]) * in[4][c];
      out[0][i] =
          (affine ? in[2][c] : 1.0) * in[4][c] * (in[1][i] - in[5][c] / n - xhat * in[6][c] / n);
    }
    for (std::size_t c = 0; c < at(channels); ++c) {
      out[1][c] = in[6][c] + (accumulate ? 0.5 : 0.0);
      out[2][c] = in[5][c] - (accumulate ? 0.25 : 0.0);
    }
  };
  return op;
}

}  // namespace starling::tests
