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
  bool backward_data = false;  ///< the first layer's is not needed
};

/// A training step that is nothing but its convolutions: forward, backward data and backward
/// weights. They are bare oneDNN primitives in the formats that oneDNN likes best; data are
/// resident, and nothing is reordered.
class ConvBound {
 public:
  /// Computes on the threads of the backend that this thread used last.
  explicit ConvBound(const std::vector<ConvShape>& convolutions);
  ~ConvBound();
  /// Runs all of them once; seconds.
  double run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace starling
