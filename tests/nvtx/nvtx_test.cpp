#include <doctest/doctest.h>

#include <nvtx3/nvToolsExt.h>

#include <string>
#include <thread>
#include <vector>

#include "core/trace.h"
#include "kernels/cuda/runtime/nvtx.h"

// A profiler that is linked in, as NVTX's headers allow: it hears what nvtx.cpp tells.
namespace {

thread_local std::vector<std::string> ranges;  ///< "" ends one

int push(const char* name) {
  ranges.emplace_back(name);
  return static_cast<int>(ranges.size());
}
int pop() {
  ranges.emplace_back();
  return 0;
}

int initialise(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable core = nullptr;
  unsigned size = 0;
  if (!callbacks || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &size) == 0)
    return 0;
  *core[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *core[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}

}  // namespace

using namespace starling;

TEST_CASE("nvtx: a profiler gets the timeline's spans as ranges, by their names") {
  InitializeInjectionNvtx2_fnptr = &initialise;
  cuda::install_nvtx();
  Tracer tracer(0);
  { const TraceSpan nobody("step", "1"); }
  CHECK(ranges.empty());
  Tracer::install(&tracer);
  {
    const TraceSpan step("step", "2");
    { const TraceSpan update("update", "bucket 3", TraceLane::kUpdate); }
    const TraceRange exchange("exchange", "bucket 3");
    std::thread([] { CHECK(ranges.empty()); }).join();
  }
  Tracer::install(nullptr);
  CHECK(ranges ==
        std::vector<std::string>{"step 2", "update bucket 3", "", "exchange bucket 3", "", ""});
  set_trace_hook(nullptr);
}
