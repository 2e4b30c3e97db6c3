// A checkpoint's DONE, beside a rank's file that it describes, and the best checkpoint's. What a
// fuzzer makes has no right checksum: its input counts as it is, and as what a checksum was made
// of.
#include "apps/training/state/checkpoint.h"

#include <string>

#include "core/checksum.h"
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
    checkpoints.begin_best();
    checkpoints.complete_best({8, "test_loss", 0.5}, {});
    return true;
  }();
  (void)once;
  const std::string given(fuzz::text(data, size));
  std::string proved = given;
  if (proved.starts_with("{\n")) proved.insert(2, " \"checksum\": \"" + checksum(given) + "\",\n");
  for (const std::string& text : {given, proved}) {
    fuzz::file("checkpoints/step-8/DONE", text);
    fuzz::file("checkpoints/best/DONE", text);
    fuzz::reads_or_refuses([&] {
      if (checkpoints.newest() == 8) (void)checkpoints.read(8, 0);
    });
    fuzz::reads_or_refuses([&] { (void)checkpoints.best(); });
  }
  return 0;
}
