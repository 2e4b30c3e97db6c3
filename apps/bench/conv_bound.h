#pragma once

#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/operations/convolutions.h"

namespace starling {

/// One convolution of a model, in memory layouts (N×H×W×C, O×kH×kW×I).
struct ConvShape {
  Shape x, weight, y;
  Window2d window;
  bool backward_data = false;  ///< not needed for the first layer
};

/// The convolutions of a training step and nothing else: forward, backward data and backward
/// weights as bare oneDNN primitives in oneDNN's preferred formats, with resident data and no
/// reorders.
class ConvBound {
 public:
  /// Computes on the threads of the backend that this thread used last.
  explicit ConvBound(const std::vector<ConvShape>& convolutions);
  ~ConvBound();
  /// Runs all of them once; returns seconds.
  double run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace starling
