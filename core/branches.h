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

/// Small gradients of parameters as a branch of the graph that a backward pass is captured into,
/// beside the gradients of values. Neither fills a GPU, and neither reads the other's. At most
/// kMost nodes' are under way at once, which bounds the memory that they keep. The branch is
/// captured on kUpload, which has nothing else to do within a capture.
class Branches {
 public:
  /// Bytes that an H200 moves in some 8 µs; larger work fills it alone
  static constexpr std::size_t kMostBytes = std::size_t{32} << 20;
  static constexpr std::size_t kMost = 2;

  /// `complete` is told each parameter that delays() was asked for, once it has been joined.
  Branches(Backend& backend, std::function<void(Parameter&)> complete);

  bool allowed() const { return allowed_; }
  void allow(bool yes) { allowed_ = yes; }
  /// Whether anything has been issued here since the last question.
  bool take_used() { return std::exchange(used_, false); }

  /// Issues `work`, which writes the gradients of `parameters` and reads what is ready now; `keep`
  /// holds all that it touches. False, and nothing is issued, outside a capture and where that is
  /// more than kMostBytes.
  bool issue(const std::function<void()>& work, const std::vector<Parameter*>& parameters,
             std::vector<Tensor> keep);
  /// Whether the parameter's gradient is here, so that it is complete later.
  bool delays(Parameter& parameter);
  /// The compute stream waits for this parameter's gradient, or for all.
  void join(const Parameter& parameter);
  void join_all();
  void clear() { issued_.clear(); }

 private:
  struct Issued {
    std::vector<Parameter*> parameters;  ///< that its node has
    std::vector<Parameter*> delayed;     ///< those that `complete` is to be told
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
