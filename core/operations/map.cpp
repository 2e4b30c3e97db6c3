#include "core/operations/map.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

Expression::Expression(std::initializer_list<MapStep> program,
                       std::initializer_list<Tensor> operands,
                       std::initializer_list<double> constants)
    : count(static_cast<int>(program.size())) {
  require(program.size() <= steps.size() && operands.size() <= in.size() &&
              constants.size() <= numbers.size(),
          "operation", "map: {} steps, {} tensors and {} numbers; at most {}, {} and {}",
          program.size(), operands.size(), constants.size(), steps.size(), in.size(),
          numbers.size());
  std::copy(program.begin(), program.end(), steps.begin());
  std::copy(operands.begin(), operands.end(), in.begin());
  std::copy(constants.begin(), constants.end(), numbers.begin());
}

std::size_t Expression::tensors() const {
  return static_cast<std::size_t>(
      std::find_if(in.begin(), in.end(), [](const Tensor& t) { return !t; }) - in.begin());
}

Shape Expression::places() const {
  std::vector<std::int64_t> sizes;
  for (std::size_t k = 0; k < tensors(); ++k) {
    const Shape& own = in[k].shape();
    const auto rank = static_cast<std::size_t>(own.rank());
    if (rank > sizes.size()) sizes.insert(sizes.begin(), rank - sizes.size(), 1);
    for (int d = 0; d < own.rank(); ++d) {
      std::int64_t& size = sizes[sizes.size() - rank + static_cast<std::size_t>(d)];
      require(own[d] == size || own[d] == 1 || size == 1, "operation",
              "map: {} and {} do not broadcast: there are {} and {} along a dimension",
              in[0].shape().text(), own.text(), size, own[d]);
      if (own[d] != 1) size = own[d];
    }
  }
  return Shape(std::span<const std::int64_t>(sizes));
}

Accesses Map::accesses() const {
  Accesses result;
  for (const Tensor& tensor : in) result.read({tensor});
  for (const Also& other : also) result.write({other.y});
  return result.write({y});
}

namespace {

/// The stride of a tensor of shape `own` along dimension d of `places`, at whose last dimensions
/// its own stand.
std::int64_t stride_along(const Shape& own, const Shape& places, int d) {
  const int at = d - (places.rank() - own.rank());
  if (at < 0 || own[at] == 1) return 0;
  std::int64_t result = 1;
  for (int later = at + 1; later < own.rank(); ++later) result *= own[later];
  return result;
}

}  // namespace

MapLayout layout_of(std::span<const Shape> operands, const Shape& places, const Shape& result) {
  MapLayout layout;
  layout.rank = 0;
  for (int d = 0; d < places.rank(); ++d) {
    if (places[d] == 1 && places.elements() > 0) continue;
    std::array<std::int64_t, kMapTensors + 1> stride{};
    for (std::size_t k = 0; k < operands.size(); ++k)
      stride[k] = stride_along(operands[k], places, d);
    stride[kMapTensors] = stride_along(result, places, d);
    bool joins = layout.rank > 0;
    for (std::size_t k = 0; k < stride.size() && joins; ++k)
      joins = layout.stride[k][static_cast<std::size_t>(layout.rank - 1)] == stride[k] * places[d];
    const auto to = static_cast<std::size_t>(joins ? layout.rank - 1 : layout.rank++);
    layout.size[to] = joins ? layout.size[to] * places[d] : places[d];
    for (std::size_t k = 0; k < stride.size(); ++k) layout.stride[k][to] = stride[k];
  }
  if (layout.rank == 0) layout.size[static_cast<std::size_t>(layout.rank++)] = places.elements();
  return layout;
}

MapLayout layout_of(const Expression& expression, const Shape& places, const Tensor& result) {
  const std::size_t tensors = expression.tensors();
  std::array<Shape, kMapTensors> shapes;
  for (std::size_t k = 0; k < tensors; ++k) shapes[k] = expression.in[k].shape();
  MapLayout layout = layout_of(std::span(shapes).first(tensors), places, result.shape());
  layout.plain = layout.rank == 1;
  for (std::size_t k = 0; k < tensors; ++k) {
    layout.plain = layout.plain && expression.in[k].elements() == result.elements() &&
                   expression.in[k].dtype() == result.dtype();
  }
  return layout;
}

void check_program(const Checker& call, const Expression& expression, DType dtype) {
  call.that(expression.count <= kMapMostSteps, "{} steps; at most {}", expression.count,
            kMapMostSteps);
  int needed = 1;
  for (int s = 0; s < expression.count; ++s) {
    const MapStep& step = expression.steps[static_cast<std::size_t>(s)];
    const int operands[] = {step.a, step.b};
    for (int i = 0; i < operands_of(step.function); ++i) {
      call.that(operands[i] < kMapResults + s, "step {} takes the result of step {}", s,
                operands[i] - kMapResults);
      if (operands[i] < kMapTensors) needed = std::max(needed, operands[i] + 1);
    }
  }
  for (int k = 0; k < needed; ++k) {
    const Tensor& tensor = expression.in[static_cast<std::size_t>(k)];
    call.floating(tensor, "an operand");
    call.that(tensor.dtype() == dtype || tensor.dtype() == wide_of(dtype),
              "operand {} is {}, not {}", k, name_of(tensor.dtype()), name_of(dtype));
  }
}

void check(const Map& args) {
  const Checker call("map");
  call.floating(args.y, "y");
  call.that(args.count >= 1, "{} steps; at least 1", args.count);
  check_program(call, args, args.y.dtype());
  const Shape& shape = args.y.shape();
  for (const Map::Also& other : args.also) {
    if (!other.y) continue;
    call.has(other.y, "a result", args.y.elements(), args.y.dtype());
    call.that(other.slot >= kMapResults && other.slot < kMapResults + args.count - 1,
              "a result of step {}, of {} before the last", other.slot - kMapResults,
              args.count - 1);
  }
  for (std::size_t k = 0; k < args.tensors(); ++k) {
    const Shape& own = args.in[k].shape();
    bool fits = own.rank() <= shape.rank();
    for (int d = 0; fits && d < own.rank(); ++d) {
      const std::int64_t size = shape[shape.rank() - own.rank() + d];
      fits = own[d] == size || own[d] == 1;
    }
    call.that(fits, "{} does not broadcast to {}", own.text(), shape.text());
  }
}

}  // namespace starling
