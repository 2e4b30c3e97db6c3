#include "core/operations/resampling.h"

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

void check(const Resample& args) {
  const Checker call("resample");
  call.floating(args.x, "x"), call.there(args.y, "y");
  call.has(args.y, "y", args.y.elements(), args.x.dtype());
  const Shape &x = args.x.shape(), &y = args.y.shape();
  call.that(x.rank() == 4 && y.rank() == 4 && x[0] == y[0] && x[3] == y[3],
            "{} and {} must be N×H×W×C, of which H and W alone may differ", x.text(), y.text());
  // Devices compute places within an image with 32 bits.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  for (int axis = 0; axis < 2; ++axis) {
    const ResampleAxis along = args.axis(axis);
    call.that(
        along.in > 0 && along.out > 0 && along.in < kMost && along.out < kMost && along.scale > 0.0,
        "{} pixels, which become {} at a scale of {}", along.in, along.out, along.scale);
  }
}

}  // namespace starling
