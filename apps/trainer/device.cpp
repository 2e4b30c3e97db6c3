#include "apps/trainer/device.h"

#include <algorithm>

#include "apps/trainer/agreement.h"
#include "apps/trainer/host.h"
#include "core/log.h"
#include "kernels/optimizer.h"

namespace starling {

std::unique_ptr<Backend> choose_backend(const TrainConfig& config, Transport& transport) {
  std::unique_ptr<Backend> backend;
  if (config.device != "cpu") {
    double usable = 0.0;
    try {
      if (config.device == "auto") {
        backend = open_backend(DeviceType::kCuda, 1);
        usable = 1.0;
      }
    } catch (const Error&) {
      // No GPU for this rank: auto falls back to the CPU below.
    }
    if (config.device == "cuda") {
      together(transport, [&] { backend = open_backend(DeviceType::kCuda, 1); });
      return backend;
    }
    if (transport.size() > 1) transport.sum(&usable, 1);
    if (usable >= transport.size()) return backend;
    backend.reset();
  }
  const int threads = config.threads > 0 ? config.threads : std::max(1, usable_cores() / std::max(1, transport.local_size()));
  together(transport, [&] { backend = open_backend(DeviceType::kCpu, threads); });
  if (usable_cores() < threads) {
    log::warning("{} threads on {} usable core{}: mpirun may have bound this rank; use mpirun --bind-to none", threads, usable_cores(),
                 usable_cores() == 1 ? "" : "s");
  }
  return backend;
}

}  // namespace starling
