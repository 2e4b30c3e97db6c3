#include "core/operations/indexing.h"

#include <limits>

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

namespace {

void check_rows(const Checker& call, const Tensor& table, const Tensor& index,
                const Tensor& values) {
  call.floating(table, "the table"), call.there(values, "what is named"),
      call.there(index, "index");
  const Shape &t = table.shape(), &v = values.shape();
  call.that(t.rank() == 3 && v.rank() == 3 && t[0] == v[0] && t[2] == v[2],
            "{} and {} must be outer×rows×columns, of which rows alone may differ", t.text(),
            v.text());
  call.has(index, "index", index.shape() == v ? v.elements() : v[1], DType::kInt32);
  call.that(values.elements() <= std::numeric_limits<std::int32_t>::max() &&
                table.elements() <= std::numeric_limits<std::int32_t>::max(),
            "{} and {} have more numbers than can be counted in 32 bits", t.text(), v.text());
}

}  // namespace

void check(const Gather& args) {
  const Checker call("gather");
  check_rows(call, args.x, args.index, args.y);
  call.has(args.y, "y", args.y.elements(), args.x.dtype());
}

void check(const ScatterAdd& args) {
  const Checker call("scatter_add");
  check_rows(call, args.y, args.index, args.x);
  call.floating(args.x, "x");
  const DType dtype = args.x.dtype();
  call.that(args.y.dtype() == dtype || args.y.dtype() == wide_of(dtype),
            "x is {}, but y is {}; needed: {}", name_of(dtype), name_of(args.y.dtype()),
            name_of(wide_of(dtype)));
}

}  // namespace starling
