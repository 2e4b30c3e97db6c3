// Model and checkpoint files.
#include "core/safetensors.h"

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  return fuzz::reads_or_refuses(
      [&] { (void)read_safetensors(fuzz::file("fuzz.safetensors", fuzz::text(data, size))); });
}
