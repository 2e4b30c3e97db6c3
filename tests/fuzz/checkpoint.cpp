// A checkpoint's DONE, beside a rank's file that it describes.
#include "apps/trainer/state/checkpoint.h"

#include "core/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  static const CheckpointFolder checkpoints(fuzz::folder());
  static const bool once = [] {
    SafetensorsFile state;
    state.metadata = {{"step", "8"}, {"ranks", "1"}};
    state.tensors["x"] = {DType::kFloat32, Shape{2}, std::vector<std::byte>(8)};
    checkpoints.begin(8);
    checkpoints.write(8, 0, state);
    return true;
  }();
  (void)once;
  fuzz::file("checkpoints/step-8/DONE", fuzz::text(data, size));
  return fuzz::reads_or_refuses([&] {
    if (checkpoints.newest() == 8) (void)checkpoints.read(8, 0);
  });
}
