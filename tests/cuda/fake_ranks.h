#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "apps/training/config/plugins.h"
#include "apps/training/training_run.h"
#include "comm/transport.h"
#include "comm/transports/staged.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda/run_config.h"
#include "tests/fakes/cuda/noting_backend.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/folder.h"

// Ranks as threads with a fake GPU each, whose operations are noted in the record.
namespace starling::tests {

/// Makes a rank's transport of its end of the fake world.
using TransportMaker =
    std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>, Backend&)>;

/// Several ranks exchange through host memory.
inline std::unique_ptr<Transport> by_host(std::unique_ptr<Transport> end, Backend&) {
  return end->size() > 1 ? make_staged_transport(std::move(end)) : std::move(end);
}

/// Runs the body on a thread for each rank, and throws what one of them threw first.
inline void run_ranks(int ranks, const TransportMaker& make,
                      const std::function<void(int, Backend&, Transport&)>& body) {
  register_builtins();  // before there are threads
  FakeWorld world(ranks, {.timeout_seconds = 20.0});
  world.run([&](Transport& end) {
    cuda::CudaBackend gpu(0, false, false, true);
    cuda::shim::NotingBackend backend(gpu);
    const std::unique_ptr<Transport> transport = make(world.transport(end.rank()), backend);
    body(end.rank(), backend, *transport);
  });
}

/// A rank's part of a run with the trainer: `train` does it all.
using AroundTraining = std::function<void(int rank, Backend& backend, const TrainConfig& config,
                                          const std::function<void()>& train)>;

inline void train_ranks(int ranks, const nlohmann::json& json, const TransportMaker& make,
                        const AroundTraining& around) {
  const test::Folder folder;
  run_ranks(ranks, make, [&](int rank, Backend& backend, Transport& transport) {
    const RankLayout site = one_host(ranks, json);
    TrainConfig config = read_gpu_config(json, site);
    around(rank, backend, config, [&] {
      const ShapeTrace trace = trace_shapes(config);
      Trainer trainer(config, site, trace, backend, transport);
      trainer.initialise();
      if (TrainingRun(trainer, folder / ".").run() != ExitCode::kOk)
        throw std::runtime_error("the run did not end well");
    });
    config.model.reset();
  });
}

}  // namespace starling::tests
