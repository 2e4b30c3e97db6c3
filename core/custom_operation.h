#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"

namespace starling {

/// An operation of a plug-in's own, which no backend knows. `Args` is a struct of tensors and
/// numbers, like those of the built-in operations; each device that the operation is for has one
/// function. On the meta backend, as in every operation, nothing happens. A complete one:
/// examples/plugin/softsign.{h,cpp,cu}, explained in docs/extending.md.
///
///     inline starling::CustomOperation<Softsign>& softsign() {
///       static starling::CustomOperation<Softsign> operation("softsign");
///       return operation;
///     }
///     static const bool on_cpu = softsign().add(starling::DeviceType::kCpu, &softsign_on_cpu);
///     static const bool on_cuda = softsign().add(starling::DeviceType::kCuda, &softsign_on_cuda);
///     softsign()(pass.backend, {x, y});
template <class Args>
class CustomOperation {
 public:
  /// Does the operation. On a CPU the work is done when it returns. On a GPU it goes to
  /// backend.native_stream(), a cudaStream_t, and nothing waits for it. What the kernel takes
  /// besides tensors must be the same in every step, or steps cannot be replayed as graphs.
  using Run = void (*)(Backend& backend, const Args& args);

  explicit CustomOperation(std::string name) : name_(std::move(name)) {}
  CustomOperation(const CustomOperation&) = delete;
  CustomOperation& operator=(const CustomOperation&) = delete;

  /// Returns true, so that a static object can call it.
  bool add(DeviceType device, Run run) {
    functions_.emplace_back(device, run);
    return true;
  }
  /// Devices that the operation is for. LayerSupport::devices takes them, so that another device is
  /// refused before training starts.
  std::vector<DeviceType> devices() const {
    std::vector<DeviceType> result;
    for (const auto& [device, run] : functions_) result.push_back(device);
    return result;
  }
  /// Error(kUsage) with the operation's and the backend's name where there is no function for it.
  void operator()(Backend& backend, const Args& args) const {
    if (backend.device() == DeviceType::kMeta) return;
    for (const auto& [device, run] : functions_) {
      if (device == backend.device()) return run(backend, args);
    }
    fail(ExitCode::kUsage, "operation",
         "'{}' has no code for the backend {}; its plug-in needs a function for it "
         "(docs/extending.md)",
         name_, name_of(backend.device()));
  }

 private:
  std::string name_;
  std::vector<std::pair<DeviceType, Run>> functions_;
};

}  // namespace starling
