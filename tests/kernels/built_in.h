#pragma once

#include <doctest/doctest.h>

#include <cstdint>

#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizers/list.h"

namespace starling::test {

/// Calls run with step s of a built-in rule, as the type that loops and kernels are made for.
template <class T, class Run>
void with_step_of(const OptimizerRule& rule, double lr, std::int64_t s, const Run& run) {
  bool found = false;
  const auto look = [&]<class Rule>() {
    const auto* kernel = dynamic_cast<const RuleKernel<Rule, cpu::IsaLaunch>*>(&rule);
    if (!kernel) return;
    found = true;
    rules::with_step(kernel->rule().template step<T>(lr, s), run);
  };
  [&]<class... Rules>(rules::RuleList<Rules...>) {
    (look.template operator()<Rules>(), ...);
  }(rules::BuiltIn());
  REQUIRE(found);
}

}  // namespace starling::test
