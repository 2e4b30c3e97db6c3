#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/operations/copying.h"
#include "core/operations/losses.h"
#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "core/operations/updates.h"
#include "tests/operations/rows.h"

// What comes after the last layer.
namespace starling::tests {

namespace {

/// Rows with so many numbers more, of which nothing may be used; and the rows of such a tensor.
Tensor padded(Backend& b, const Tensor& x, Index padding) {
  if (padding == 0) return x;
  const Index rows = x.shape()[0], columns = x.shape()[1];
  const Tensor wide(b, {rows, columns + padding}, x.dtype());
  StridedCopy copy{.x = x, .y = wide, .rank = 2, .others = std::nan("")};
  copy.dimensions = {StridedCopy::Dimension::whole(rows, columns),
                     {columns + padding, 0, columns, 1, 1}};
  b.strided_copy(copy);
  return wide;
}
void take_rows(Backend& b, const Tensor& wide, const Tensor& x) {
  if (wide.shape() == x.shape()) return;
  StridedCopy copy{.x = wide, .y = x, .rank = 2};
  copy.dimensions = {StridedCopy::Dimension::whole(x.shape()[0], wide.shape()[1]),
                     StridedCopy::Dimension::whole(x.shape()[1], 1)};
  b.strided_copy(copy);
}

}  // namespace

Operation cross_entropy(Index rows, Index classes, double smoothing,
                        std::optional<std::int32_t> ignored, Index padding) {
  Operation op;
  op.loose = {2};
  if (rows * classes == 1) op.loose.insert(1);  // one target may be a probability, too
  op.name = fmt::format("cross entropy {}x{}, smoothing {}{}{}", rows, classes, smoothing,
                        ignored ? ", one ignored" : "", padding > 0 ? ", padded" : "");
  op.inputs = {{rows, classes}, {rows}};
  op.input_roles = {Role::kActivation, Role::kIndex};
  op.bounds = {0, classes};
  op.outputs = {{}};
  op.output_roles = {Role::kParameter};
  const double scale = 1.0 / static_cast<double>(rows);
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.target_loss({.x = padded(b, in[0], padding),
                   .targets = in[1],
                   .loss = out[0],
                   .label_smoothing = smoothing,
                   .scale = scale,
                   .ignored = ignored,
                   .classes = padding > 0 ? classes : 0});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    const auto counts = [&](double label) { return !ignored || label != *ignored; };
    const auto counted = static_cast<double>(std::count_if(in[1].begin(), in[1].end(), counts));
    for (Index r = 0; r < rows; ++r) {
      if (!counts(in[1][at(r)])) continue;
      double sum = 0;
      for (Index c = 0; c < classes; ++c) sum += std::exp(in[0][at(r * classes + c)]);
      for (Index c = 0; c < classes; ++c) {
        const double target =
            (1 - smoothing) * (static_cast<double>(c) == in[1][at(r)] ? 1.0 : 0.0) +
            smoothing / static_cast<double>(classes);
        out[0][0] -= target / counted * std::log(std::exp(in[0][at(r * classes + c)]) / sum);
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors&, const Tensors&, const Tensor& dy,
                    const Tensors& d) {
    // The seed is a scalar that the loss is multiplied by.
    // With padding in place, too.
    const Tensor x = padded(b, in[0], padding), dx = padding > 0 ? x : d[0];
    b.target_loss({.x = x,
                   .targets = in[1],
                   .dx = dx,
                   .label_smoothing = smoothing,
                   .scale = scale / 8 * to_numbers(dy)[0],
                   .gradient_scale = 8.0,
                   .ignored = ignored,
                   .classes = padding > 0 ? classes : 0});
    take_rows(b, dx, d[0]);
  };
  return op;
}

namespace {

using Wide = long double;  // so that differences of its values keep enough digits

/// The formulas as they are written down, with nothing done against overflow. `weights`: of
/// classes, or null.
Wide plain_loss(LossKind kind, const std::vector<Wide>& x, const double* t, double parameter,
                double smoothing, const double* weights = nullptr) {
  Wide sum = 0, loss = 0;
  for (const Wide score : x) sum += std::exp(score);
  for (std::size_t c = 0; c < x.size(); ++c) {
    const Wide p = std::exp(x[c]) / sum, d = std::abs(x[c] - t[c]),
               sigmoid = 1 / (1 + std::exp(-x[c]));
    const Wide wanted = (weights ? weights[c] : 1.0) *
                        ((1 - smoothing) * t[c] + smoothing / static_cast<double>(x.size()));
    switch (kind) {
      case LossKind::kCrossEntropy: loss -= wanted * std::log(p); break;
      case LossKind::kFocal:
        loss -= wanted * std::pow(1 - p, static_cast<Wide>(parameter)) * std::log(p);
        break;
      case LossKind::kLogistic:
        loss -= t[c] * std::log(sigmoid) + (1 - t[c]) * std::log(1 - sigmoid);
        break;
      case LossKind::kSquared: loss += d * d; break;
      case LossKind::kAbsolute: loss += d; break;
      case LossKind::kHuber:
        loss += d <= parameter ? d * d / 2 : parameter * (d - parameter / 2);
        break;
    }
  }
  return loss;
}

std::string text_of(LossKind kind) {
  constexpr const char* kNames[] = {"cross entropy", "focal",    "logistic",
                                    "squared",       "absolute", "huber"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// Input number `place`: weights of classes, of which the first counts nothing.
void add_weights(Operation& op, Index classes, std::size_t place) {
  op.name += ", weighted";
  op.inputs.push_back({classes});
  op.input_roles.push_back(Role::kExact);
  op.fit = [place, also = op.fit](std::vector<Numbers>& in) {
    if (also) also(in);
    for (double& w : in[place]) w = std::abs(w);
    in[place][0] = 0.0;
  };
}

}  // namespace

Operation target_loss(LossKind kind, Index rows, Index classes, double parameter, double smoothing,
                      bool weighted, std::optional<std::int32_t> ignored) {
  constexpr double kBefore = 3.0;
  Operation op;
  op.name = fmt::format("target_loss {} {}x{}, parameter {}, smoothing {}", text_of(kind), rows,
                        classes, parameter, smoothing);
  op.inputs = {{rows, classes}, {rows}};
  op.input_roles = {Role::kActivation, Role::kIndex};
  if (weighted) add_weights(op, classes, 2);
  op.bounds = {0, classes};
  op.outputs = {{}};
  op.output_roles = {Role::kParameter};
  if (ignored) {
    op.name += ", one ignored, with the total";
    op.outputs.emplace_back();
    op.output_roles.push_back(Role::kExact);
  }
  const TargetLoss settings{.kind = kind,
                            .parameter = parameter,
                            .label_smoothing = smoothing,
                            .scale = 1.0 / static_cast<double>(rows),
                            .ignored = ignored};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    TargetLoss args = settings;
    args.x = in[0];
    args.targets = in[1];
    args.loss = out[0];
    if (weighted) args.class_weights = in[2];
    if (ignored) {
      b.fill(out[1], kBefore);
      args.total = out[1];
    }
    b.target_loss(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    const auto counts = [&](Index r) { return !ignored || in[1][at(r)] != *ignored; };
    double sum = 0.0;
    for (Index r = 0; r < rows; ++r) {
      if (counts(r)) sum += weighted ? in[2][static_cast<std::size_t>(in[1][at(r)])] : 1.0;
    }
    if (ignored) {
      out[1][0] = kBefore + sum;
      sum = static_cast<double>(rows);  // the results are not divided
    }
    for (Index r = 0; r < rows; ++r) {
      if (!counts(r)) continue;
      Numbers target(at(classes), 0.0);
      target[static_cast<std::size_t>(in[1][at(r)])] = 1.0;
      const std::vector<Wide> row(in[0].begin() + r * classes, in[0].begin() + (r + 1) * classes);
      out[0][0] += static_cast<double>(plain_loss(kind, row, target.data(), parameter, smoothing,
                                                  weighted ? in[2].data() : nullptr)) /
                   sum;
    }
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors&, const Tensors&, const Tensor& dy,
                    const Tensors& d) {
    TargetLoss args = settings;
    args.x = in[0];
    args.targets = in[1];
    args.dx = d[0];
    if (weighted) args.class_weights = in[2];
    const Tensor total(b, Shape{}, DType::kFloat64);
    if (ignored) args.total = total;
    args.scale *= to_numbers(dy)[0] / 8;
    args.gradient_scale = 8.0;
    b.target_loss(args);
  };
  return op;
}

Operation cross_entropy_in_parts(Index rows, Index classes, std::int32_t ignored) {
  Operation op = cross_entropy(rows, classes, 0.1, ignored);
  op.name += ", in parts";
  op.loose = {0, 1, 2};  // of which parts are taken
  const auto each = [=](Backend& b, const Tensors& in, const Tensor& loss, const Tensor& d,
                        double scale) {
    const Tensor first(b, Shape{}, loss ? loss.dtype() : parameter_dtype(in[0].dtype())),
        second(b, Shape{}, first.dtype());
    for (const bool end : {false, true}) {
      const Index begin = end ? rows / 3 : 0, count = end ? rows - begin : rows / 3;
      TargetLoss args{.x = in[0].slice(begin * classes, {count, classes}),
                      .targets = in[1].slice(begin, {count}),
                      .loss = end ? second : first,
                      .label_smoothing = 0.1,
                      .scale = scale,
                      .ignored = ignored,
                      .batch_targets = in[1]};
      if (d) args.dx = d.slice(begin * classes, {count, classes});
      b.target_loss(args);
    }
    if (loss) b.map({MapFunction::kAdd, first, second, loss});
  };
  const double scale = 1.0 / static_cast<double>(rows);
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    each(b, in, out[0], {}, scale);
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors&, const Tensors&, const Tensor& dy,
                    const Tensors& d) { each(b, in, {}, d[0], scale * to_numbers(dy)[0]); };
  return op;
}

Operation soft_target_loss(LossKind kind, Index rows, Index classes, double parameter,
                           double smoothing, bool weighted) {
  constexpr double kScale = 0.25, kGradientScale = 2.0;
  Operation op;
  op.name = fmt::format("target_loss {} {}x{}, parameter {}, smoothing {}, of numbers",
                        text_of(kind), rows, classes, parameter, smoothing);
  op.inputs = {{rows, classes}, {rows, classes}};
  op.input_roles = {Role::kActivation, Role::kParameter};
  op.outputs = {{rows, classes}, {}};
  op.output_roles = {Role::kActivation, Role::kParameter};
  op.fit = [](std::vector<Numbers>& in) {
    for (double& t : in[1]) t = std::abs(t);  // weights of classes; they need not add up to 1
  };
  if (weighted) add_weights(op, classes, 2);
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.target_loss({.kind = kind,
                   .x = in[0],
                   .targets = in[1],
                   .loss = out[1],
                   .dx = out[0],
                   .parameter = parameter,
                   .label_smoothing = smoothing,
                   .scale = kScale,
                   .gradient_scale = kGradientScale,
                   .class_weights = weighted ? in[2] : Tensor()});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index r = 0; r < rows; ++r) {
      const double* t = in[1].data() + r * classes;
      std::vector<Wide> row(in[0].begin() + r * classes, in[0].begin() + (r + 1) * classes);
      const auto value = [&] {
        return plain_loss(kind, row, t, parameter, smoothing, weighted ? in[2].data() : nullptr);
      };
      out[1][0] += kScale * static_cast<double>(value());
      for (Index c = 0; c < classes; ++c) {
        constexpr Wide kStep = 1e-3;
        const Wide x = row[at(c)];
        const auto beside = [&](int steps) {
          row[at(c)] = x + steps * kStep;
          return value();
        };
        // To the 4th power of the step.
        const Wide slope = (8 * (beside(1) - beside(-1)) - (beside(2) - beside(-2))) / (12 * kStep);
        row[at(c)] = x;
        out[0][at(r * classes + c)] = kScale * kGradientScale * static_cast<double>(slope);
      }
    }
  };
  return op;
}

Operation squared_distance(Index n, bool of_two) {
  constexpr double kBefore = 0.25;
  Operation op;
  op.loose = of_two ? std::set<std::size_t>{2} : std::set<std::size_t>{0, 1};
  op.name = fmt::format("squared_distance of {}{}", n, of_two ? ", two tensors" : "");
  op.inputs.assign(of_two ? 2 : 1, Shape{n});
  op.outputs = {{3}};
  op.output_roles = {Role::kExact};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.fill(out[0], kBefore);
    b.reduce(Reduce::squared_distance(in[0], of_two ? in[1] : Tensor(), out[0], 1));
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    std::fill(out[0].begin(), out[0].end(), kBefore);
    for (std::size_t i = 0; i < in[0].size(); ++i)
      out[0][1] += std::pow(in[0][i] - (of_two ? in[1][i] : 0.0), 2);
  };
  return op;
}

Operation squared_norms(Index n) {
  Operation op;
  op.exact = true;
  op.loose = {0, 1, 2};
  op.name = fmt::format("squared_norms of {} and 40", n);
  op.inputs = {{n}, {40}};
  op.outputs = {{2}};
  op.output_roles = {Role::kExact};
  op.input_roles = {Role::kParameter, Role::kParameter};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.squared_norms({{in[0], in[1]}, out[0], 0});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t k = 0; k < 2; ++k) {
      out[0][k] = 0.0;
      for (const double x : in[k]) out[0][k] += x * x;
    }
  };
  return op;
}

Operation gradient_control(Index totals, double clip, bool check_finite, Norms norms) {
  constexpr double kScale = 1.0 / 3.0;  // its product with the root is rounded
  Operation op;
  op.exact = true;
  op.loose = {0};
  op.name = fmt::format("gradient_control of {} totals, clip {}{}{}", totals, clip,
                        check_finite ? ", checked" : "",
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
    b.gradient_control({.totals = in[0],
                        .first = 2,
                        .count = totals,
                        .scale = kScale,
                        .clip = clip,
                        .check_finite = check_finite,
                        .control = out[0]});
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
