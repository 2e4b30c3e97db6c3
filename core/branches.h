#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/parameter.h"
#include "core/tensor.h"

namespace starling {

/// Captures small gradients of parameters as a parallel branch of the backward pass's graph, so
/// that they run concurrently with the gradients of activations, which do not depend on them;
/// neither fills a GPU. At most kMost nodes' are in flight at a time, which limits the memory that
/// they keep alive. The branch is captured on kUpload, which is otherwise unused in a capture.
class Branches {
 public:
  /// What an H200 moves in about 8 µs; larger work fills the GPU
  static constexpr std::size_t kMostBytes = std::size_t{32} << 20;
  static constexpr std::size_t kMost = 2;

  /// `complete` is called with each parameter for which delays() returned true, once it is joined.
  Branches(Backend& backend, std::function<void(Parameter&)> complete);

  bool allowed() const { return allowed_; }
  void allow(bool yes) { allowed_ = yes; }
  /// Whether anything was issued since the last call.
  bool take_used() { return std::exchange(used_, false); }

  /// Issues `work`, which writes the gradients of `parameters` and only reads what is ready now;
  /// `keep` has all tensors that it accesses. Returns false without issuing it outside a capture,
  /// and if these exceed kMostBytes.
  bool issue(const std::function<void()>& work, const std::vector<Parameter*>& parameters,
             std::vector<Tensor> keep);
  /// Whether the parameter's gradient is in a branch, and so not complete yet.
  bool delays(Parameter& parameter);
  /// Makes the compute stream wait for this parameter's gradient, or for all.
  void join(const Parameter& parameter);
  void join_all();
  void clear() { issued_.clear(); }

 private:
  struct Issued {
    std::vector<Parameter*> parameters;  ///< of the node
    std::vector<Parameter*> delayed;     ///< those to call `complete` with
    Event done;
    std::vector<Tensor> keep;
  };
  Issued* find(const Parameter& parameter);
  void join_oldest();

  Backend& backend_;
  std::function<void(Parameter&)> complete_;
  bool allowed_ = true, used_ = false;
  std::deque<Issued> issued_;
};

}  // namespace starling
