#include "kernels/gpu_update.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>

#include "core/error.h"

namespace starling {
namespace {

std::map<std::type_index, GpuUpdateLauncher>& launchers() {
  static std::map<std::type_index, GpuUpdateLauncher> table;
  return table;
}

std::string type_name(const OptimizerRule& rule) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(typeid(rule).name(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : typeid(rule).name();
}

[[noreturn]] void fail_for(std::string_view optimizer) {
  fail(ExitCode::kUsage, "cuda",
       "the optimizer {} has no GPU kernels: its plug-in needs a .cu file with STARLING_CUDA_RULE "
       "in starling_add_plugin, built where nvcc "
       "is (docs/extending.md); or use --device cpu",
       optimizer);
}

}  // namespace

bool register_gpu_update(std::type_index rule, GpuUpdateLauncher launcher) {
  launchers()[rule] = launcher;
  return true;
}

GpuUpdateLauncher find_gpu_update(const OptimizerRule& rule) {
  const auto it = launchers().find(std::type_index(typeid(rule)));
  return it == launchers().end() ? nullptr : it->second;
}

bool runs_on_gpu(const OptimizerRule& rule) {
  return rule.facts().built_in || find_gpu_update(rule);
}

void require_gpu_update(const OptimizerRule& rule, std::string_view optimizer) {
  if (!runs_on_gpu(rule)) fail_for(fmt::format("'{}'", optimizer));
}

void fail_without_gpu_update(const OptimizerRule& rule) {
  fail_for(fmt::format("of type {}", type_name(rule)));
}

}  // namespace starling
