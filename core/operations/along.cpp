#include "core/operations/along.h"

#include <limits>

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

namespace {

void check_lines(const Checker& call, const Tensor& x, const Tensor& y, const char* name,
                 DType dtype) {
  call.floating(x, "x"), call.there(y, name);
  call.has(y, name, y.elements(), dtype);
  const Shape &from = x.shape(), &to = y.shape();
  call.that(from.rank() == 3 && to.rank() == 3 && from[0] == to[0] && from[2] == to[2],
            "{} and {} must be outer×n×inner, of which n alone may differ", from.text(), to.text());
}

}  // namespace

void check(const TopK& args) {
  const Checker call("topk");
  call.that(args.values || args.index, "neither values nor index");
  if (args.values) check_lines(call, args.x, args.values, "values", args.x.dtype());
  if (args.index) check_lines(call, args.x, args.index, "index", DType::kInt32);
  if (args.values && args.index)
    call.has(args.values, "values", args.index.elements(), args.x.dtype());
  call.that(args.k() <= args.x.shape()[1], "{} of {} numbers", args.k(), args.x.shape()[1]);
  call.that(args.x.elements() <= std::numeric_limits<std::int32_t>::max(),
            "{} has more numbers than can be counted in 32 bits", args.x.shape().text());
}

void check(const CumulativeSum& args) {
  const Checker call("cumulative_sum");
  check_lines(call, args.x, args.y, "y", args.x.dtype());
  call.has(args.y, "y", args.x.elements(), args.x.dtype());
}

}  // namespace starling
