#include "core/operations/copying.h"

#include <algorithm>

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

Accesses StridedCopy::accesses() const {
  double taken = static_cast<double>(size_of(x.dtype()));
  for (int d = 0; d < rank; ++d) {
    const Dimension& dimension = dimensions[static_cast<std::size_t>(d)];
    if (dimension.stride != 0) taken *= static_cast<double>(dimension.count);
  }
  return Accesses().read({x}).again(taken - bytes_of({x})).write({y});
}

StridedCopy StridedCopy::joined() const {
  StridedCopy result = *this;
  result.rank = 0;
  for (int d = 0; d < rank; ++d) {
    const Dimension& next = dimensions[static_cast<std::size_t>(d)];
    if (next.size == 1 && next.count == 1) continue;
    if (result.rank > 0) {
      Dimension& last = result.dimensions[static_cast<std::size_t>(result.rank - 1)];
      if (last.is_whole() && next.is_whole() && last.stride == next.stride * next.size) {
        last = Dimension::whole(last.size * next.size, next.stride);
        continue;
      }
    }
    result.dimensions[static_cast<std::size_t>(result.rank++)] = next;
  }
  if (result.rank == 0) result.dimensions[static_cast<std::size_t>(result.rank++)] = {};
  return result;
}

void check(const StridedCopy& args) {
  const Checker call("strided_copy");
  call.there(args.x, "x"), call.there(args.y, "y");
  call.that(args.rank >= 0 && args.rank <= Shape::kMaxRank, "{} dimensions; at most {}", args.rank,
            Shape::kMaxRank);
  call.that(args.x.dtype() == args.y.dtype(), "x is {}, but y is {}", name_of(args.x.dtype()),
            name_of(args.y.dtype()));
  std::int64_t elements = 1, least = args.first, most = args.first;
  bool any = true;
  for (int d = 0; d < args.rank; ++d) {
    const auto& [size, begin, count, step, stride] = args.dimensions[static_cast<std::size_t>(d)];
    call.that(
        begin >= 0 && count >= 0 && step >= 1 && (count == 0 || begin + (count - 1) * step < size),
        "dimension {}: {} places from {} on, {} apart, of {}", d, count, begin, step, size);
    elements *= size;
    any = any && count > 0;
    least += std::min<std::int64_t>(stride, 0) * (count - 1);
    most += std::max<std::int64_t>(stride, 0) * (count - 1);
  }
  call.that(elements == args.y.elements(), "y has {} elements, its dimensions {}",
            args.y.elements(), elements);
  call.that(!any || (least >= 0 && most < args.x.elements()),
            "elements {} to {} of x, which has {}", least, most, args.x.elements());
}

}  // namespace starling
