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

/// What a training step would take if it were nothing but its convolutions: forward, backward data
/// and backward weights as bare oneDNN primitives in the formats that oneDNN likes best, data
/// resident, nothing reordered.
class ConvBound {
 public:
  /// On the threads of the backend that this thread used last.
  explicit ConvBound(const std::vector<ConvShape>& convolutions);
  ~ConvBound();
  /// Runs all of them once; seconds.
  double run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace starling
