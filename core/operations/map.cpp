#include "core/operations/map.h"

#include <algorithm>

#include "core/error.h"
#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

Map::Map(std::initializer_list<MapStep> program, std::initializer_list<Tensor> operands,
         const Tensor& result, std::initializer_list<double> constants)
    : count(static_cast<int>(program.size())), y(result) {
  require(program.size() <= steps.size() && operands.size() <= in.size() &&
              constants.size() <= numbers.size(),
          "operation", "map: {} steps, {} tensors and {} numbers; at most {}, {} and {}",
          program.size(), operands.size(), constants.size(), steps.size(), in.size(),
          numbers.size());
  std::copy(program.begin(), program.end(), steps.begin());
  std::copy(operands.begin(), operands.end(), in.begin());
  std::copy(constants.begin(), constants.end(), numbers.begin());
}

Accesses Map::accesses() const {
  Accesses result;
  for (const Tensor& tensor : in) result.read({tensor});
  return result.write({y});
}

MapLayout layout_of(const Map& map) {
  const Shape& shape = map.y.shape();
  MapLayout result;
  result.rank = 0;
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] == 1 && shape.elements() > 0) continue;
    std::array<std::int64_t, kMapTensors> stride{};
    bool joins = result.rank > 0;
    for (std::size_t k = 0; k < map.in.size() && map.in[k]; ++k) {
      // The tensor's dimensions stand at y's last ones.
      const Shape& own = map.in[k].shape();
      const int at = d - (shape.rank() - own.rank());
      if (at >= 0 && own[at] != 1) {
        stride[k] = 1;
        for (int later = at + 1; later < own.rank(); ++later) stride[k] *= own[later];
      }
      joins = joins &&
              result.stride[k][static_cast<std::size_t>(result.rank - 1)] == stride[k] * shape[d];
    }
    const auto to = static_cast<std::size_t>(joins ? result.rank - 1 : result.rank++);
    result.size[to] = joins ? result.size[to] * shape[d] : shape[d];
    for (std::size_t k = 0; k < stride.size(); ++k) result.stride[k][to] = stride[k];
  }
  if (result.rank == 0) result.size[static_cast<std::size_t>(result.rank++)] = shape.elements();
  result.plain = result.rank == 1;
  for (std::size_t k = 0; k < map.in.size() && map.in[k]; ++k)
    result.plain = result.plain && map.in[k].elements() == map.y.elements() &&
                   map.in[k].dtype() == map.y.dtype();
  return result;
}

void check(const Map& args) {
  const Checker call("map");
  call.floating(args.y, "y");
  call.that(args.count >= 1 && args.count <= kMapMostSteps, "{} steps; at least 1, at most {}",
            args.count, kMapMostSteps);
  int tensors = 0;
  for (int s = 0; s < args.count; ++s) {
    const MapStep& step = args.steps[static_cast<std::size_t>(s)];
    const int operands[] = {step.a, step.b};
    for (int i = 0; i < operands_of(step.function); ++i) {
      call.that(operands[i] < kMapResults + s, "step {} takes the result of step {}", s,
                operands[i] - kMapResults);
      if (operands[i] < kMapTensors) tensors = std::max(tensors, operands[i] + 1);
    }
  }
  const Shape& shape = args.y.shape();
  for (int k = 0; k < tensors; ++k) {
    const Tensor& tensor = args.in[static_cast<std::size_t>(k)];
    call.floating(tensor, "an operand");
    const Shape& own = tensor.shape();
    bool fits = own.rank() <= shape.rank();
    for (int d = 0; fits && d < own.rank(); ++d) {
      const std::int64_t size = shape[shape.rank() - own.rank() + d];
      fits = own[d] == size || own[d] == 1;
    }
    call.that(fits, "{} does not broadcast to {}", own.text(), shape.text());
    call.that(tensor.dtype() == args.y.dtype() || tensor.dtype() == wide_of(args.y.dtype()),
              "operand {} is {}, y {}", k, name_of(tensor.dtype()), name_of(args.y.dtype()));
  }
}

}  // namespace starling
