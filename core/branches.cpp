#include "core/branches.h"

#include <algorithm>

namespace starling {

Branches::Branches(Backend& backend, std::function<void(Parameter&)> complete)
    : backend_(backend), complete_(std::move(complete)) {}

bool Branches::issue(const std::function<void()>& work, const std::vector<Parameter*>& parameters,
                     std::vector<Tensor> keep) {
  if (!allowed_ || !backend_.capturing() || backend_.stream() != StreamKind::kCompute) return false;
  std::size_t bytes = 0;
  for (const Tensor& tensor : keep) bytes += tensor.bytes();
  if (bytes > kMostBytes) return false;
  while (issued_.size() >= kMost) join_oldest();
  used_ = true;  // also if it fails
  const Event ready = backend_.record();
  const StreamScope scope(backend_, StreamKind::kUpload);
  backend_.wait(ready);
  work();
  issued_.push_back({parameters, {}, backend_.record(), std::move(keep)});
  return true;
}

Branches::Issued* Branches::find(const Parameter& parameter) {
  const auto it = std::find_if(issued_.begin(), issued_.end(), [&](const Issued& issued) {
    return std::find(issued.parameters.begin(), issued.parameters.end(), &parameter) !=
           issued.parameters.end();
  });
  return it == issued_.end() ? nullptr : &*it;
}

bool Branches::delays(Parameter& parameter) {
  Issued* const issued = find(parameter);
  if (issued) issued->delayed.push_back(&parameter);
  return issued != nullptr;
}

void Branches::join(const Parameter& parameter) {
  while (find(parameter)) join_oldest();
}

void Branches::join_all() {
  while (!issued_.empty()) join_oldest();
}

/// Joins the oldest. What it kept can be used again by work that the compute stream is told from
/// here on: memory comes from that stream.
void Branches::join_oldest() {
  backend_.wait(issued_.front().done);
  const Issued oldest = std::move(issued_.front());
  issued_.pop_front();
  for (Parameter* parameter : oldest.delayed) complete_(*parameter);
}

}  // namespace starling
