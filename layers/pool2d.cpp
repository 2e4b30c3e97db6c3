#include "layers/pool2d.h"

#include "layers/functions.h"
#include "layers/window.h"

namespace starling {

Shape Pool2d::build(const Shape& input) {
  if (input.rank() != 3) bad_shape(input, "an image H×W×C");
  return window_output(*this, input, window_, input[2]);
}

Variable Pool2d::compute(const Variable& x, Pass& pass) { return functions::pool2d(x, kind_, window_, pass); }

}  // namespace starling
