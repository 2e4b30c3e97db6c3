// NVRTC compiles the texts of Maps on a machine without a GPU: what it makes of them.
#include <doctest/doctest.h>
#include <nvrtc.h>

#include <cstddef>
#include <string>
#include <vector>

#include "core/operations/map.h"
#include "kernels/cuda/libraries/kernel_headers.h"
#include "kernels/cuda/libraries/map_source.h"
#include "kernels/open_backend.h"

namespace starling::tests {
namespace {

using F = MapFunction;

/// The PTX of a text; empty, with the compiler's words, where it does not compile.
std::string ptx_of(const std::string& text, std::string& log) {
  std::vector<const char*> names, texts;
  for (const cuda::KernelHeader& header : cuda::kernel_headers()) {
    names.push_back(header.name);
    texts.push_back(header.text);
  }
  nvrtcProgram program = nullptr;
  REQUIRE(nvrtcCreateProgram(&program, text.c_str(), "map.cu", static_cast<int>(names.size()),
                             texts.data(), names.data()) == NVRTC_SUCCESS);
  // ptxas says what a thread takes when machine code is made, too.
  const char* options[] = {"--gpu-architecture=sm_90", "--std=c++20", "-default-device",
                           "--ptxas-options=-v"};
  const bool compiled = nvrtcCompileProgram(program, 4, options) == NVRTC_SUCCESS;
  std::size_t bytes = 0;
  nvrtcGetProgramLogSize(program, &bytes);
  log.resize(bytes);
  nvrtcGetProgramLog(program, log.data());
  std::string ptx;
  if (compiled) {
    nvrtcGetPTXSize(program, &bytes);
    ptx.resize(bytes);
    nvrtcGetPTX(program, ptx.data());
  }
  nvrtcDestroyProgram(&program);
  return ptx;
}

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t result = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    ++result;
  return result;
}

}  // namespace

TEST_CASE("nvrtc: a chain of functions moves 16 bytes at once, and keeps nothing on a stack") {
  const std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(name_of(dtype));
    const Shape rows{64, 32};
    const auto tensor = [&](const Shape& shape) { return Tensor(*cpu, shape, dtype); };
    const std::uint8_t result = kMapResults;
    Map map({{F::kGelu, 0},
             {F::kSigmoid, 1},
             {F::kMultiply, result, result + 1},
             {F::kAdd, result + 2, 2},
             {F::kPower, result + 3, kMapNumbers}},
            {tensor(rows), tensor(rows), tensor({64, 1})}, tensor(rows), {1.5});
    map.also[0] = {tensor(rows), result + 2};
    const MapLayout layout = layout_of(map, rows, map.y);
    const cuda::MapCall call = cuda::map_call(map, layout);
    std::string log;
    const std::string ptx = ptx_of(cuda::map_text(map, layout, call.pack), log);
    CAPTURE(log);
    REQUIRE(!ptx.empty());
    const std::size_t wide = count(ptx, "ld.global.v2.b64") + count(ptx, "ld.global.v4") +
                             count(ptx, "ld.global.v2.f64") + count(ptx, "ld.global.v2.u64");
    CHECK(wide == 2);
    CHECK(count(log, "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") >= 1);
  }
}

}  // namespace starling::tests
