#pragma once

#include <functional>
#include <memory>

#include "kernels/math/linear.h"
#include "kernels/optimizer.h"

namespace starling {

using Linear = rules::LinearCoefficients<double>;
/// A rule of sums (kernels/math/linear.h) with `states` state tensors, at most 2, of which the
/// first `made` are written. For algorithms; it has no name in configs.
std::unique_ptr<OptimizerRule> make_linear_rule(int states, int made,
                                                std::function<Linear(double lr)> coefficients);

}  // namespace starling
