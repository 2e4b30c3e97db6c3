#include "kernels/cuda/libraries/map_source.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "core/dtype.h"
#include "core/error.h"
#include "core/operations/map_function.h"

namespace starling::cuda {

namespace {

std::string_view name_of(MapFunction function) {
#define STARLING_MAP_TEXT(name, operands, value) #name,
  constexpr std::string_view kNames[] = {STARLING_MAP_FUNCTIONS(STARLING_MAP_TEXT)};
#undef STARLING_MAP_TEXT
  return kNames[static_cast<std::size_t>(function)];
}

std::string_view type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return "double";
    case DType::kFloat32: return "float";
    case DType::kBFloat16: return "BFloat16";
    case DType::kFloat16: return "Float16";
    default: fail(ExitCode::kInternal, "cuda", "a map of {}", starling::name_of(dtype));
  }
}

/// The variable of a slot in the source: a tensor's element, a constant, or a step's result.
std::string slot(int number) {
  if (number < kMapNumbers) return fmt::format("a{}", number);
  if (number < kMapResults) return fmt::format("n{}", number - kMapNumbers);
  return fmt::format("r{}", number - kMapResults);
}

bool is_short(const Map& map) {
  return map.y.elements() <= std::numeric_limits<std::int32_t>::max();
}

}  // namespace

MapCall map_call(const Map& map, const MapLayout& layout) {
  MapCall call;
  MapArguments& arguments = call.arguments;
  std::string& key = call.key;
  const auto last = static_cast<std::size_t>(layout.rank - 1);
  const Index length = layout.size[last], elements = map.y.elements();
  // A pack has one element unless every row of every tensor is aligned to 16 bytes.
  const auto pack = static_cast<Index>(16 / size_of(map.y.dtype()));
  bool packs = packable(map.y.raw()) && (layout.rank == 1 || length % pack == 0);
  key = {static_cast<char>(map.y.dtype()), static_cast<char>(layout.rank),
         static_cast<char>(is_short(map))};
  for (std::size_t k = 0; k < map.tensors(); ++k) {
    const bool repeats = layout.stride[k][last] == 0;
    arguments.in[k] = map.in[k].raw();
    packs = packs && (repeats || packable(map.in[k].raw()));
    key += {'t', static_cast<char>(map.in[k].dtype()), static_cast<char>(repeats)};
    for (std::size_t d = 0; d < last; ++d) {
      arguments.stride[k][d] = layout.stride[k][d];
      packs = packs && (repeats || layout.stride[k][d] % pack == 0);
      key += static_cast<char>(layout.stride[k][d] == 0);
    }
  }
  for (std::size_t d = 0; d < last; ++d) arguments.size[d] = layout.size[d];
  for (std::size_t i = 0; i < map.numbers.size(); ++i) {
    arguments.numbers[i] = map.numbers[i];
    arguments.narrow_numbers[i] = static_cast<float>(map.numbers[i]);
  }
  for (int s = 0; s < map.count; ++s) {
    const MapStep& step = map.steps[static_cast<std::size_t>(s)];
    key += {'s', static_cast<char>(step.function), static_cast<char>(step.a),
            operands_of(step.function) == 2 ? static_cast<char>(step.b) : '\0'};
  }
  int outputs = 0;
  arguments.out[0] = map.y.raw();
  for (const Map::Also& other : map.also) {
    if (!other.y) continue;
    packs = packs && packable(other.y.raw());
    arguments.out[++outputs] = other.y.raw();
    key += {'y', static_cast<char>(other.slot)};
  }
  call.pack = packs ? pack : 1;
  key += static_cast<char>(call.pack);
  arguments.packs = elements / call.pack;
  arguments.tail = elements % call.pack;
  arguments.row_packs = length / call.pack;
  call.threads = arguments.packs + arguments.tail;
  return call;
}

std::string map_text(const Map& map, const MapLayout& layout, Index pack) {
  const auto tensors = static_cast<int>(map.tensors());
  const auto last = static_cast<std::size_t>(layout.rank - 1);
  const bool is_double = map.y.dtype() == DType::kFloat64;
  std::string text;
  const auto line = [&]<class... A>(fmt::format_string<A...> format, A&&... values) {
    fmt::format_to(std::back_inserter(text), format, std::forward<A>(values)...);
    text += '\n';
  };
  for (const char* header : {"kernels/cuda/device/map_arguments.h", "kernels/cuda/device/packs.h",
                             "kernels/math/fast_float.h", "kernels/math/map_functions.h"})
    line("#include \"{}\"", header);
  line("namespace starling::cuda {{");
  line("using T = {};", type_of(map.y.dtype()));
  line("using A = math::Fast<T>;");
  // 32-bit indices need half the registers, and division is several times faster
  line("using U = std::uint{}_t;", is_short(map) ? 32 : 64);
  line("template <int N>");
  line("__device__ __forceinline__ void places(const MapArguments& p, U row, U along, U at) {{");
  line("  (void)row, (void)along, (void)at;");
  for (std::size_t d = last; d-- > 0;) {
    if (d > 0) {
      line("  const U i{0} = row % static_cast<U>(p.size[{0}]);", d);
      line("  row /= static_cast<U>(p.size[{}]);", d);
    } else {
      line("  const U i0 = row;");
    }
  }
  for (int k = 0; k < tensors; ++k) {
    const auto at = static_cast<std::size_t>(k);
    const DType dtype = map.in[at].dtype();
    line("  const {0}* x{1} = static_cast<const {0}*>(p.in[{1}]);", type_of(dtype), k);
    for (std::size_t d = 0; d < last; ++d)
      if (layout.stride[at][d] != 0)
        line("  x{0} += i{1} * static_cast<U>(p.stride[{0}][{1}]);", k, d);
    if (layout.stride[at][last] == 0) {
      line("  const A a{0}(widen(*x{0}));", k);
    } else {
      line("  {} v{}[N];", type_of(dtype), k);
      line("  load<N>(x{0} + along, v{0});", k);
    }
  }
  std::array<bool, kMapMostNumbers> used{};
  for (int s = 0; s < map.count; ++s) {
    const MapStep& step = map.steps[static_cast<std::size_t>(s)];
    for (const int operand : {int{step.a}, operands_of(step.function) == 2 ? int{step.b} : 0}) {
      if (operand >= kMapNumbers && operand < kMapResults)
        used[static_cast<std::size_t>(operand - kMapNumbers)] = true;
    }
  }
  for (std::size_t i = 0; i < used.size(); ++i)
    if (used[i]) line("  const A n{0}(p.{1}[{0}]);", i, is_double ? "numbers" : "narrow_numbers");
  int outputs = 0;
  line("  T y0[N];");
  for (const Map::Also& other : map.also)
    if (other.y) line("  T y{}[N];", ++outputs);
  line("#pragma unroll");
  line("  for (int k = 0; k < N; ++k) {{");
  for (int k = 0; k < tensors; ++k)
    if (layout.stride[static_cast<std::size_t>(k)][last] != 0)
      line("    const A a{0}(widen(v{0}[k]));", k);
  for (int s = 0; s < map.count; ++s) {
    const MapStep& step = map.steps[static_cast<std::size_t>(s)];
    const int b = operands_of(step.function) == 2 ? step.b : step.a;
    line("    const A r{} = math::map_function(MapFunction::{}, {}, {});", s,
         name_of(step.function), slot(step.a), slot(b));
  }
  line("    y0[k] = narrow<T>(static_cast<Compute<T>>(r{}));", map.count - 1);
  outputs = 0;
  for (const Map::Also& other : map.also)
    if (other.y)
      line("    y{}[k] = narrow<T>(static_cast<Compute<T>>({}));", ++outputs, slot(other.slot));
  line("  }}");
  for (int r = 0; r <= outputs; ++r) line("  store<N>(y{0}, static_cast<T*>(p.out[{0}]) + at);", r);
  line("}}");
  line(
      "extern \"C\" __global__ void __launch_bounds__(kThreads) compiled_map(const MapArguments p) "
      "{{");
  line("  const U i = U{{blockIdx.x}} * U{{kThreads}} + threadIdx.x;");
  line("  const U packs = static_cast<U>(p.packs);");
  line("  if (i < packs) {{");
  if (last > 0) {
    line("    const U row_packs = static_cast<U>(p.row_packs), row = i / row_packs;");
    line("    places<{0}>(p, row, (i - row * row_packs) * {0}, i * {0});", pack);
  } else {
    line("    places<{0}>(p, 0, i * {0}, i * {0});", pack);
  }
  line("  }} else if (i < packs + static_cast<U>(p.tail)) {{");
  line("    const U at = packs * {} + (i - packs);", pack);
  line("    places<1>(p, 0, at, at);");
  line("  }}");
  line("}}");
  line("}}  // namespace starling::cuda");

  return text;
}

}  // namespace starling::cuda
