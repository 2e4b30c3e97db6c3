#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/list.h"

namespace starling {

OptimizerRegistry& optimizers() {
  static OptimizerRegistry registry("optimizer");
  return registry;
}

void OptimizerRegistry::add(const std::string& name, Maker maker, std::string summary,
                            double rate) {
  Registry::add(name, std::move(maker), std::move(summary));
  if (rate != kUsualRate) unusual_.emplace_back(name, rate);
}

double OptimizerRegistry::rate(const std::string& name) const {
  for (const auto& [other, rate] : unusual_) {
    if (other == name) return rate;
  }
  return kUsualRate;
}

std::string OptimizerRegistry::rates() const {
  std::vector<std::pair<double, std::vector<std::string>>> groups;
  for (const auto& [name, rate] : unusual_) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [rate = rate](const auto& other) { return other.first == rate; });
    if (group == groups.end()) group = groups.insert(group, {rate, {}});
    group->second.push_back(fmt::format("`{}`", name));
  }
  std::string text = fmt::format("{}", kUsualRate);
  for (const auto& [rate, names] : groups) {
    text += fmt::format("{}{} for ", &rate == &groups.front().first ? ", but " : ", ", rate);
    for (std::size_t k = 0; k < names.size(); ++k)
      text += (k == 0 ? "" : k + 1 < names.size() ? ", " : " and ") + names[k];
  }
  return text;
}

void register_builtin_optimizers() {
  static const bool once = [] {
    const auto add = []<class Rule>() {
      if constexpr (requires { Rule::kName; }) add_optimizer<Rule, cpu::IsaLaunch>();
    };
    [&]<class... Rules>(rules::RuleList<Rules...>) {
      (add.template operator()<Rules>(), ...);
    }(rules::BuiltIn());
    return true;
  }();
  (void)once;
}

}  // namespace starling
