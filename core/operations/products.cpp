#include "core/operations/products.h"

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

void check(const Matmul& args) {
  const Checker call("matmul");
  call.floating(args.a, "a"), call.there(args.b, "b"), call.there(args.c, "c");
  const Shape &a = args.a.shape(), &b = args.b.shape(), &c = args.c.shape();
  call.that(a.rank() == 2 && b.rank() == 2 && c.rank() == 2,
            "a, b and c must be matrices, not {}, {} and {}", a.text(), b.text(), c.text());
  const int row = args.transpose_a ? 1 : 0, column = args.transpose_b ? 0 : 1;
  call.that(a[row] == c[0] && b[1 - column] == a[1 - row] && b[column] == c[1],
            "{}{} by {}{} is not {}", a.text(), args.transpose_a ? " transposed" : "", b.text(),
            args.transpose_b ? " transposed" : "", c.text());
  call.that(!args.relu || !args.accumulate, "relu and accumulate exclude each other");
  const DType given = args.a.dtype(), wide = wide_of(given);
  call.that(args.b.dtype() == given, "a is {}, but b is {}", name_of(given),
            name_of(args.b.dtype()));
  call.that(args.c.dtype() == given || args.c.dtype() == wide, "c is {}; needed for {} factors: {}",
            name_of(args.c.dtype()), name_of(given), name_of(wide));
  call.may_have(args.bias, "bias", c[1], wide);
}

}  // namespace starling
