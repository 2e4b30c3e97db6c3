#include "core/operations/reduce.h"

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

Reduce Reduce::squared_distance(const Tensor& x, const Tensor& y, const Tensor& totals,
                                std::int64_t index) {
  const Tensor total = totals.slice(index, Shape{});
  Reduce result =
      y ? Reduce({{MapFunction::kSubtract}, {MapFunction::kSquare, kMapResults}}, {x, y}, total)
        : Reduce({{MapFunction::kSquare}}, {x}, total);
  result.accumulate = true;
  return result;
}

bool sums_squares(const Reduce& args) {
  return args.by == Reduction::kSum && args.y.dtype() == DType::kFloat64 && args.count == 1 &&
         args.steps[0].function == MapFunction::kSquare && args.tensors() == 1;
}

Accesses Reduce::accesses() const {
  Accesses result;
  for (const Tensor& tensor : in) result.read({tensor});
  return result.output(accumulate, {y});
}

void check(const Reduce& args) {
  const Checker call("reduce");
  call.floating(args.y, "y"), call.floating(args.in[0], "an operand");
  const DType given = args.in[0].dtype(), dtype = args.y.dtype();
  // The lowest of the operands' types is what the others must go with.
  DType lowest = given;
  for (std::size_t k = 0; k < args.tensors(); ++k) {
    if (is_low_precision(args.in[k].dtype())) lowest = args.in[k].dtype();
  }
  check_program(call, args, lowest);
  call.that(dtype == lowest || dtype == wide_of(lowest) || dtype == DType::kFloat64,
            "y is {}; needed for {} operands: {}", name_of(dtype), name_of(lowest),
            name_of(wide_of(lowest)));
  call.that(args.count > 0 || args.tensors() == 1, "{} tensors, but no step", args.tensors());
  call.that(args.by == Reduction::kSum || (!args.accumulate && args.factor == 1.0),
            "only sums are added to y, or have a factor");
  const Shape places = args.places(), &own = args.y.shape();
  bool fits = own.rank() <= places.rank();
  for (int d = 0; fits && d < own.rank(); ++d)
    fits = own[d] == places[places.rank() - own.rank() + d] || own[d] == 1;
  call.that(fits, "{} is not what {} becomes: dimensions stay or become 1", own.text(),
            places.text());
  call.that(places.elements() > 0 || own.elements() == 0 || args.by == Reduction::kSum,
            "no number is largest or least");
}

}  // namespace starling
