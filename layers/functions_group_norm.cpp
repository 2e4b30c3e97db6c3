#include <utility>

#include "core/error.h"
#include "core/operations/checker.h"
#include "core/operations/map.h"
#include "core/operations/reduce.h"
#include "layers/functions.h"

// Normalisation of groups of a sample's channels. Sums are computed per channel over the pixels
// first, then added within a group.
namespace starling::functions {

namespace {

using F = MapFunction;
constexpr std::uint8_t kStep = kMapResults, kConstant = kMapNumbers;

/// The sizes of x[samples, pixels, groups, channels of a group].
struct Sizes {
  std::int64_t samples, pixels, groups, each;
  Shape image() const { return {samples, pixels, groups * each}; }
  /// Shapes of one number per channel; by_group(): divided into groups
  Shape channels() const { return {samples, 1, groups * each}; }
  Shape by_group() const { return {samples, groups, each}; }
  double share() const { return 1.0 / static_cast<double>(pixels * each); }
};

/// One number per sample and channel, reduced from x.
Tensor sums(const Sizes& s, std::initializer_list<MapStep> program,
            std::initializer_list<Tensor> operands, DType type) {
  const Tensor y(operands.begin()->backend(), s.channels(), type);
  y.backend().reduce({program, operands, y});
  return y;
}
/// The mean over each group from its channels' sums, each multiplied by `factor` (optional).
Tensor mean_of_groups(const Sizes& s, const Tensor& sums, const Tensor& factor) {
  const Tensor y(sums.backend(), {s.samples, s.groups, 1}, sums.dtype());
  const Tensor by_group = sums.reshaped(s.by_group());
  Reduce reduce = factor ? Reduce({{F::kMultiply}}, {by_group, factor}, y) : Reduce(by_group, y);
  reduce.factor = s.share();
  y.backend().reduce(reduce);
  return y;
}
/// One number per channel, from operands with a number per group or per channel.
Tensor for_channels(const Sizes& s, std::initializer_list<MapStep> program,
                    std::initializer_list<Tensor> operands,
                    std::initializer_list<double> numbers = {}) {
  const Tensor y(operands.begin()->backend(), s.by_group(), operands.begin()->dtype());
  y.backend().map({program, operands, y, numbers});
  return y.reshaped(s.channels());
}

}  // namespace

Variable group_norm(const Variable& x, std::int64_t num_groups, Parameter* gamma, Parameter* beta,
                    double eps, Pass& pass) {
  const Shape& in = x.shape();
  if (in.rank() < 2 || num_groups < 1 || in.back() % num_groups != 0)
    fail(ExitCode::kUsage, "group_norm", "{} groups of {}; they must divide the last of N×…×C",
         num_groups, in.text());
  Sizes s{in[0], 1, num_groups, in.back() / num_groups};
  for (int d = 1; d < in.rank() - 1; ++d) s.pixels *= in[d];
  const DType wide = wide_of(x.dtype());
  const Tensor image = x.value().reshaped(s.image()),
               weight = gamma ? gamma->value.reshaped({s.groups, s.each}) : Tensor();
  const auto spread = [&s](const Tensor& of_groups) {
    return for_channels(s, {{F::kMultiply, 0, kConstant}}, {of_groups}, {1.0});
  };
  const Tensor mean = spread(mean_of_groups(s, sums(s, {}, {image}, wide), {}));
  const Tensor variance = mean_of_groups(
      s, sums(s, {{F::kSubtract, 0, 1}, {F::kSquare, kStep}}, {image, mean}, wide), {});
  const Tensor scale(pass.backend, variance.shape(), wide);
  pass.backend.map({{{F::kAdd, 0, kConstant}, {F::kRsqrt, kStep}}, {variance}, scale, {eps}});

  const Tensor factor = weight ? for_channels(s, {{F::kMultiply}}, {scale, weight}) : spread(scale);
  const Tensor y(pass.backend, s.image(), x.dtype());
  Map map({{F::kSubtract, 0, 1}, {F::kMultiply, kStep, 2}}, {image, mean, factor}, y);
  if (beta)
    map = {{{F::kSubtract, 0, 1}, {F::kMultiply, kStep, 2}, {F::kAdd, kStep + 1, 3}},
           {image, mean, factor, beta->value},
           y};
  pass.backend.map(map);

  auto backward = [image, mean, scale, factor, weight, s, wide, in](Gradients& g) {
    const Tensor dy = g.output().reshaped(s.image());
    const Tensor whole = sums(s, {}, {dy}, wide),
                 along = sums(s, {{F::kSubtract, 1, 2}, {F::kMultiply, 0, kStep}},
                              {dy, image, mean}, wide);
    if (const Gradients::Target target = g.parameter(0)) {
      Reduce reduce({{F::kMultiply}}, {along.reshaped(s.by_group()), scale},
                    target.tensor.reshaped({s.groups, s.each}));
      reduce.accumulate = target.accumulate;
      g.backend().reduce(reduce);
    }
    if (const Gradients::Target target = g.parameter(1))
      g.backend().reduce({whole, target.tensor, target.accumulate});
    if (!g.wants(0)) return;
    // dx = s·γ·dy - s·mean(γ·dy) - (x - mean)·s³·mean(γ·dy·(x - mean)), where s is the scale
    const Tensor level =
        for_channels(s, {{F::kMultiply}}, {mean_of_groups(s, whole, weight), scale});
    const Tensor slope =
        for_channels(s, {{F::kSquare, 1}, {F::kMultiply, kStep, 1}, {F::kMultiply, kStep + 1, 0}},
                     {mean_of_groups(s, along, weight), scale});
    const Tensor dx(g.backend(), s.image(), dy.dtype());
    g.backend().map({{{F::kMultiply, 0, 3},
                      {F::kSubtract, kStep, 4},
                      {F::kSubtract, 1, 2},
                      {F::kMultiply, kStep + 2, 5},
                      {F::kSubtract, kStep + 1, kStep + 3}},
                     {dy, image, mean, factor, level, slope},
                     dx});
    g.set(0, dx.reshaped(in));
  };
  return pass.record("group_norm", y.reshaped(in), {x}, {gamma, beta}, std::move(backward));
}

Variable instance_norm(const Variable& x, Parameter* gamma, Parameter* beta, double eps,
                       Pass& pass) {
  if (x.shape().rank() < 2)
    fail(ExitCode::kUsage, "instance_norm", "the input is {}; needed: N×…×C", x.shape().text());
  return group_norm(x, x.shape().back(), gamma, beta, eps, pass);
}

}  // namespace starling::functions
