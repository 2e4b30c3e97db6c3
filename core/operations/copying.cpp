#include "core/operations/copying.h"

#include <algorithm>
#include <cstring>

#include "core/dispatch.h"
#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

Accesses StridedCopy::accesses() const {
  double taken = static_cast<double>(size_of(x.dtype()));
  for (int d = 0; d < rank; ++d) {
    const Dimension& dimension = dimensions[static_cast<std::size_t>(d)];
    if (dimension.stride != 0) taken *= static_cast<double>(dimension.count);
  }
  Accesses result = Accesses().read({x}).again(taken - bytes_of({x}));
  // What stays counts as read, and is not touched.
  return others ? result.write({y}) : result.change({y}).again(taken - 2.0 * bytes_of({y}));
}

std::uint64_t StridedCopy::other_bits() const {
  std::uint64_t result = 0;
  if (is_floating(y.dtype())) {
    dispatch_floating(y.dtype(), [&](auto type) {
      const auto number =
          static_cast<decltype(type)>(static_cast<Compute<decltype(type)>>(others.value_or(0.0)));
      std::memcpy(&result, &number, sizeof(number));
    });
  }
  return result;
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
  call.that(is_floating(args.y.dtype()) || args.others.value_or(0.0) == 0.0,
            "{} places that become {}", name_of(args.y.dtype()), args.others.value_or(0.0));
  call.that(elements == args.y.elements(), "y has {} elements, its dimensions {}",
            args.y.elements(), elements);
  call.that(!any || (least >= 0 && most < args.x.elements()),
            "elements {} to {} of x, which has {}", least, most, args.x.elements());
}

}  // namespace starling
