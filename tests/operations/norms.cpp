#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/operations/norms.h"
#include "tests/operations/rows.h"

// Batch norms whole and in steps, layer norms and softmax.
namespace starling::tests {

namespace {
/// Running statistics before a pass.
Numbers old_means(Index channels) { return random_numbers(channels, 78); }
Numbers old_variances(Index channels) {
  Numbers result = random_numbers(channels, 79);
  for (double& v : result) v = static_cast<double>(static_cast<float>(1.25 + v));
  return result;
}
constexpr double kBatchesBefore = 41;
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

Operation batch_norm(Index rows, Index channels, const NormCase& how) {
  const bool affine = how.affine, residual = how.residual, relu = how.relu;
  Operation op;
  op.name = fmt::format("batch norm {}x{}{}{}{}{}{}{}", rows, channels, affine ? "" : ", plain",
                        residual ? ", residual" : "", relu ? ", relu" : "",
                        how.mask == MaskFrom::kInput ? ", mask from x" : "",
                        how.inference ? ", inference" : "", how.two_terms ? ", two terms" : "");
  if (how.ceiling != kNoCeiling) op.name += fmt::format(", up to {}", how.ceiling);
  op.inputs = {{rows, channels}};
  if (affine) op.inputs.insert(op.inputs.end(), {Shape{channels}, Shape{channels}});
  if (residual) op.inputs.push_back({rows, channels});
  // y, the running statistics, those of the batch, and how many batches there were
  op.outputs = {{rows, channels}, {channels}, {channels}, {channels}, {channels}, {}};
  const std::size_t r = affine ? 3 : 1;
  op.loose = {op.inputs.size() + 5};
  op.input_roles.assign(op.inputs.size(), Role::kActivation);
  if (affine) op.input_roles[1] = op.input_roles[2] = Role::kParameter;
  op.output_roles = {Role::kActivation, Role::kParameter, Role::kParameter,
                     Role::kParameter,  Role::kParameter, Role::kCounter};
  // The rates here count y in both walks of the backward pass; what the operation says of itself
  // lets the second one read dresidual instead.
  if (residual && relu && how.mask == MaskFrom::kOutput) op.backward_again = count(op.inputs[0]);
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    if (saved.empty()) {
      const DType statistics = parameter_dtype(in[0].dtype());
      saved = {to_tensor(b, old_means(channels), {channels}, statistics),
               to_tensor(b, old_variances(channels), {channels}, statistics)};
      b.copy(saved[0], out[1]);
      b.copy(saved[1], out[2]);
      b.fill(out[5], kBatchesBefore);
    }
    BatchNormForward args{.x = in[0], .y = out[0], .running_mean = out[1], .running_var = out[2]};
    args.saved_mean = out[3];
    args.saved_inv_std = out[4];
    args.batches_tracked = out[5];
    if (affine) args.gamma = in[1];
    if (affine) args.beta = in[2];
    if (residual) args.residual = in[r];
    args.rectifier = {relu, how.ceiling};
    args.training = !how.inference;
    b.batch_norm_forward(args);
    if (!how.inference) return;
    // The same with statistics that are given.
    b.fill(out[0], 99.0);
    args.running_mean = args.running_var = Tensor();
    b.batch_norm_forward(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    const Numbers means = old_means(channels), variances = old_variances(channels);
    const double n = static_cast<double>(rows);
    for (Index c = 0; c < channels; ++c) {
      double mean = 0, variance = 0;
      for (Index i = 0; i < rows; ++i) mean += in[0][at(i * channels + c)] / n;
      for (Index i = 0; i < rows; ++i)
        variance += std::pow(in[0][at(i * channels + c)] - mean, 2) / n;
      if (how.inference) {
        mean = out[1][at(c)] = means[at(c)];
        variance = out[2][at(c)] = variances[at(c)];
      } else {
        out[1][at(c)] = 0.9 * means[at(c)] + 0.1 * mean;
        out[2][at(c)] =
            0.9 * variances[at(c)] + 0.1 * (rows > 1 ? variance * n / (n - 1) : variance);
      }
      out[3][at(c)] = mean;
      out[4][at(c)] = 1 / std::sqrt(variance + 1e-5);
      for (Index i = 0; i < rows; ++i) {
        double value = (in[0][at(i * channels + c)] - mean) * out[4][at(c)];
        if (affine) value = value * in[1][at(c)] + in[2][at(c)];
        if (residual) value += in[r][at(i * channels + c)];
        out[0][at(i * channels + c)] = relu ? std::min(std::max(value, 0.0), how.ceiling) : value;
      }
    }
    out[5][0] = kBatchesBefore + (how.inference ? 0 : 1);
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors& out, const Tensors&,
                    const Tensor& dy, const Tensors& d) {
    BatchNormBackward args{.x = in[0],
                           .y = out[0],
                           .dy = dy,
                           .saved_mean = out[3],
                           .saved_inv_std = out[4],
                           .dx = d[0],
                           .rectifier = {relu, how.ceiling}};
    // 2 dy and -dy, whose sum is exact: cuDNN rounds it to the type of tensors
    if (how.two_terms) {
      Numbers twice = to_numbers(dy), less = twice;
      for (double& v : twice) v *= 2.0;
      for (double& v : less) v *= -1.0;
      args.dy = to_tensor(b, twice, dy.shape(), dy.dtype());
      args.dy2 = to_tensor(b, less, dy.shape(), dy.dtype());
    }
    if (affine) args.gamma = in[1];
    if (affine) args.dgamma = d[1];
    if (affine) args.dbeta = d[2];
    if (residual) args.dresidual = d[r];
    if (how.mask == MaskFrom::kInput) {
      if (affine) args.beta = in[2];
      args.y = Tensor();
    }
    args.training = !how.inference;
    b.batch_norm_backward(args);
  };
  op.tolerance = 3e-5;
  return op;
}

Operation layer_norm(Index rows, Index channels, bool affine, bool centered, bool residual) {
  Operation op;
  op.name = fmt::format("{} norm {}x{}{}{}", centered ? "layer" : "rms", rows, channels,
                        affine ? "" : ", plain", residual ? " + x" : "");
  const bool beta = affine && centered;
  op.inputs = {{rows, channels}};
  for (int k = 0; k < (affine ? 1 : 0) + (beta ? 1 : 0); ++k) op.inputs.push_back({channels});
  op.outputs = {{rows, channels}, {rows}};
  if (centered) op.outputs.push_back({rows});
  op.input_roles = {Role::kActivation, Role::kParameter, Role::kParameter};
  op.output_roles = {Role::kActivation, Role::kParameter, Role::kParameter};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.layer_norm_forward({.x = in[0],
                          .gamma = affine ? in[1] : Tensor(),
                          .beta = beta ? in[2] : Tensor(),
                          .y = out[0],
                          .saved_mean = centered ? out[2] : Tensor(),
                          .saved_inv_std = out[1],
                          .eps = 1e-3,
                          .centered = centered});
    if (residual) b.map({MapFunction::kAdd, out[0], in[0], out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < rows; ++i) {
      double mean = 0, variance = 0;
      for (Index c = 0; centered && c < channels; ++c)
        mean += in[0][at(i * channels + c)] / static_cast<double>(channels);
      for (Index c = 0; c < channels; ++c)
        variance += std::pow(in[0][at(i * channels + c)] - mean, 2) / static_cast<double>(channels);
      if (centered) out[2][at(i)] = mean;
      out[1][at(i)] = 1 / std::sqrt(variance + 1e-3);
      for (Index c = 0; c < channels; ++c) {
        double value = (in[0][at(i * channels + c)] - mean) * out[1][at(i)];
        if (affine) value *= in[1][at(c)];
        if (residual) value += in[0][at(i * channels + c)];
        out[0][at(i * channels + c)] = beta ? value + in[2][at(c)] : value;
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors& out, const Tensors&,
                    const Tensor& dy, const Tensors& d) {
    b.layer_norm_backward({.x = in[0],
                           .dy = dy,
                           .gamma = affine ? in[1] : Tensor(),
                           .saved_mean = centered ? out[2] : Tensor(),
                           .saved_inv_std = out[1],
                           .dx = d[0],
                           .dgamma = affine ? d[1] : Tensor(),
                           .dbeta = beta ? d[2] : Tensor(),
                           .term = residual ? dy : Tensor(),
                           .centered = centered});
  };
  op.tolerance = residual ? 6e-4 : 3e-5;  // the sum is rounded once more
  return op;
}

Operation layer_norm_of_sum(Index rows, Index channels, bool centered) {
  Operation op = layer_norm(rows, channels, true, centered);
  op.name += ", of a sum";
  const std::size_t sum = op.outputs.size();
  op.inputs.push_back({rows, channels});
  op.outputs.push_back({rows, channels});
  op.input_roles.resize(op.inputs.size() - 1, Role::kParameter);
  op.input_roles.push_back(Role::kActivation);
  op.output_roles.resize(sum, Role::kParameter);
  op.output_roles.push_back(Role::kActivation);
  op.carried = 2;  // the sum is rounded, and what is small of it loses digits
  op.tolerance = 1e-4;
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.layer_norm_forward({.x = in[0],
                          .gamma = in[1],
                          .beta = centered ? in[2] : Tensor(),
                          .y = out[0],
                          .saved_mean = centered ? out[2] : Tensor(),
                          .saved_inv_std = out[1],
                          .eps = 1e-3,
                          .centered = centered,
                          .residual = in.back(),
                          .sum = out.back()});
  };
  op.reference = [norm = op.reference, sum](const std::vector<Numbers>& in,
                                            std::vector<Numbers>& out) {
    std::vector<Numbers> added = in;
    for (std::size_t i = 0; i < in[0].size(); ++i) added[0][i] += in.back()[i];
    norm(added, out);
    out[sum] = added[0];
  };
  op.backward = nullptr;
  return op;
}

Operation softmax(Index rows, Index n, bool logarithm) {
  Operation op;
  op.name = fmt::format("{}softmax {}x{}", logarithm ? "log " : "", rows, n);
  op.inputs = op.outputs = {{rows, n}};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.softmax_forward({.x = in[0], .y = out[0], .logarithm = logarithm});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index first = 0; first < rows * n; first += n) {
      const auto row = in[0].begin() + first;
      const double largest = *std::max_element(row, row + n);
      double sum = 0.0;
      for (Index k = 0; k < n; ++k) sum += std::exp(row[k] - largest);
      for (Index k = 0; k < n; ++k) {
        const double shifted = row[k] - largest;
        out[0][at(first + k)] = logarithm ? shifted - std::log(sum) : std::exp(shifted) / sum;
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors&, const Tensors& out, const Tensors&,
                    const Tensor& dy, const Tensors& d) {
    b.softmax_backward({.y = out[0], .dy = dy, .dx = d[0], .logarithm = logarithm});
  };
  return op;
}

// The steps of a batch norm, each alone.

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
