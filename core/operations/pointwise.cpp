#include "core/operations/pointwise.h"

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

void check(const Dropout& args) {
  const Checker call("dropout");
  call.floating(args.x, "x");
  call.has(args.y, "y", args.x.elements(), args.x.dtype());
  call.that(args.p >= 0.0 && args.p <= 1.0, "p is {}, but must lie in [0, 1]", args.p);
}

void check(const Cast& args) {
  const Checker call("cast");
  call.there(args.x, "x"), call.floating(args.y, "y");
  call.that(args.x.dtype() != DType::kInt64, "x is {}; needed: a floating dtype, uint8 or int32",
            name_of(args.x.dtype()));
  call.that(args.x.elements() == args.y.elements(), "x has {} elements, y {}", args.x.elements(),
            args.y.elements());
}

void check(const WeightedSum& args) {
  const Checker call("weighted_sum");
  call.floating(args.out, "out");
  call.that(args.terms >= 0 && args.terms <= 8, "{} terms; at most 8", args.terms);
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.terms); ++i)
    call.has(args.in[i], "an input", args.out.elements(), args.out.dtype());
}

void check(const SquaredNorms& args) {
  const Checker call("squared_norms");
  call.there(args.totals, "totals");
  call.that(args.totals.dtype() == DType::kFloat64 && args.first >= 0 &&
                args.first + static_cast<std::int64_t>(args.x.size()) <= args.totals.elements(),
            "{} totals from {} on, in {} {}", args.x.size(), args.first, args.totals.elements(),
            name_of(args.totals.dtype()));
  for (const Tensor& tensor : args.x) {
    call.there(tensor, "a tensor");
    call.that(tensor.dtype() == args.x[0].dtype() &&
                  (tensor.dtype() == DType::kFloat32 || tensor.dtype() == DType::kFloat64),
              "tensors of {} and {}; needed: all fp32 or all fp64", name_of(args.x[0].dtype()),
              name_of(tensor.dtype()));
  }
}

}  // namespace starling
