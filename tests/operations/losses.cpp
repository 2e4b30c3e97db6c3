#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/operations/rows.h"

// What comes after the last layer.
namespace starling::tests {

Operation cross_entropy(Index rows, Index classes, double smoothing) {
  Operation op;
  op.name = fmt::format("cross entropy {}x{}, smoothing {}", rows, classes, smoothing);
  op.inputs = {{rows, classes}, {rows}};
  op.input_roles = {Role::kActivation, Role::kIndex};
  op.bounds = {0, classes};
  op.outputs = {{}};
  op.output_roles = {Role::kParameter};
  const double scale = 1.0 / static_cast<double>(rows);
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.softmax_cross_entropy({.logits = in[0], .labels = in[1], .loss = out[0], .label_smoothing = smoothing, .scale = scale});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index r = 0; r < rows; ++r) {
      double sum = 0;
      for (Index c = 0; c < classes; ++c) sum += std::exp(in[0][at(r * classes + c)]);
      for (Index c = 0; c < classes; ++c) {
        const double target =
            (1 - smoothing) * (static_cast<double>(c) == in[1][at(r)] ? 1.0 : 0.0) + smoothing / static_cast<double>(classes);
        out[0][0] -= scale * target * std::log(std::exp(in[0][at(r * classes + c)]) / sum);
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors&, const Tensors&, const Tensor& dy, const Tensors& d) {
    // The seed is a scalar that the loss is multiplied by.
    b.softmax_cross_entropy(
        {.logits = in[0], .labels = in[1], .dlogits = d[0], .label_smoothing = smoothing, .scale = scale * to_numbers(dy)[0]});
  };
  return op;
}

Operation metrics(Index rows, Index classes) {
  constexpr double kBefore = 2.0;  // they are added to
  Operation op;
  op.name = fmt::format("classification_metrics {}x{}", rows, classes);
  op.inputs = {{rows, classes}, {rows}};
  op.input_roles = {Role::kActivation, Role::kIndex};
  op.bounds = {0, classes};
  op.outputs = {{4}};
  op.output_roles = {Role::kExact};
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.fill(out[0], kBefore);
    b.classification_metrics({.logits = in[0], .labels = in[1], .totals = out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    std::fill(out[0].begin(), out[0].end(), kBefore);
    for (Index r = 0; r < rows; ++r) {
      const double* row = in[0].data() + r * classes;
      const auto label = static_cast<Index>(in[1][at(r)]);
      double sum = 0;
      Index before = 0;  // classes that come before the label's in order of size, the first of equal ones first
      for (Index c = 0; c < classes; ++c) {
        sum += std::exp(row[c]);
        before += row[c] > row[label] || (row[c] == row[label] && c < label);
      }
      out[0][0] += std::log(sum) - row[label];
      out[0][1] += before < 1 ? 1 : 0;
      out[0][2] += before < 5 ? 1 : 0;
      out[0][3] += 1;
    }
  };
  return op;
}

Operation squared_distance(Index n, bool of_two) {
  constexpr double kBefore = 0.25;
  Operation op;
  op.name = fmt::format("squared_distance of {}{}", n, of_two ? ", two tensors" : "");
  op.inputs.assign(of_two ? 2 : 1, Shape{n});
  op.outputs = {{3}};
  op.output_roles = {Role::kExact};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.fill(out[0], kBefore);
    b.squared_distance({.x = in[0], .y = of_two ? in[1] : Tensor(), .totals = out[0], .index = 1});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    std::fill(out[0].begin(), out[0].end(), kBefore);
    for (std::size_t i = 0; i < in[0].size(); ++i) out[0][1] += std::pow(in[0][i] - (of_two ? in[1][i] : 0.0), 2);
  };
  return op;
}

Operation gradient_control(Index totals, double clip, bool check_finite, Norms norms) {
  constexpr double kScale = 0.5;
  Operation op;
  op.name = fmt::format("gradient_control of {} totals, clip {}{}{}", totals, clip, check_finite ? ", checked" : "",
                        norms == Norms::kFinite     ? ""
                        : norms == Norms::kInfinite ? ", infinite"
                                                    : ", nan");
  op.inputs = {{totals + 3}};
  op.input_roles = {Role::kExact};
  op.outputs = {{2}};
  op.output_roles = {Role::kExact};
  op.fit = [norms](std::vector<Numbers>& in) {
    for (double& v : in[0]) v = 10.0 * std::abs(v);
    if (norms == Norms::kInfinite) in[0][3] = std::numeric_limits<double>::infinity();
    if (norms == Norms::kNan) in[0][3] = std::numeric_limits<double>::quiet_NaN();
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.gradient_control(
        {.totals = in[0], .first = 2, .count = totals, .scale = kScale, .clip = clip, .check_finite = check_finite, .control = out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    double sum = 0;
    for (Index i = 0; i < totals; ++i) sum += in[0][at(2 + i)];
    const double norm = kScale * std::sqrt(sum);
    out[0][0] = clip == 0.0 || std::isnan(norm) ? 1.0 : std::min(1.0, clip / (norm + 1e-6));
    out[0][1] = check_finite && !std::isfinite(norm) ? 1.0 : 0.0;
  };
  return op;
}

}  // namespace starling::tests
