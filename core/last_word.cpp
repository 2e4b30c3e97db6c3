#include "core/last_word.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <system_error>
#include <thread>

#include "core/stop_signals.h"

namespace starling {
namespace {

// mpirun answers within milliseconds, on a host that is busy later. A process that ends while it
// connects has PMIx 4.2 free the connection twice, and mpirun may then hang for good.
constexpr auto kPatience = std::chrono::seconds(10);

/// PMIx_Abort() of the library by which Open MPI speaks with mpirun; whether it was called.
bool pmix_abort(int status) {
  void* library = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  const auto init =
      reinterpret_cast<int (*)(void*, void*, unsigned long)>(::dlsym(library, "PMIx_Init"));
  const auto abort = reinterpret_cast<int (*)(int, const char*, void*, unsigned long)>(
      ::dlsym(library, "PMIx_Abort"));
  alignas(16) static char self[4096];  // its pmix_proc_t has 260 bytes
  if (init == nullptr || abort == nullptr || init(self, nullptr, 0) != 0) return false;
  return abort(status, "", nullptr, 0) == 0;
}

}  // namespace

bool end_mpirun(int status) {
  // What mpirun says to its ranks; Open MPI 5 would add words to an abort, too.
  if (!std::getenv("OMPI_MCA_ess_base_jobid") || !std::getenv("PMIX_RANK")) return false;
  std::fflush(nullptr);
  try {
    auto done = std::make_shared<std::promise<bool>>();
    std::future<bool> asked = done->get_future();
    std::thread([status, done] { done->set_value(pmix_abort(status)); }).detach();
    return asked.wait_for(kPatience) == std::future_status::timeout || asked.get();
  } catch (const std::system_error&) {  // no thread to be had
    return false;
  }
}

int last_word(int status, bool told) {
  if (status == 0 || !std::getenv("OMPI_MCA_ess_base_jobid")) return status;
  let_signals_end_this_process();
  if (!told) std::this_thread::sleep_for(2 * kPatience);
  // A thread may be inside of PMIx still.
  if (end_mpirun(status)) std::_Exit(status);
  return status;
}

}  // namespace starling
