// A state that another rank sends, in pieces: it is refused as one that cannot be read, or taken
// whole.
#include <algorithm>

#include "apps/training/state/state_transfer.h"
#include "kernels/open_backend.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  static const std::unique_ptr<Backend> host = open_backend(DeviceType::kCpu, 1);
  const std::string_view text = fuzz::text(data, size);
  StateReader reader(1, *host);
  try {
    constexpr std::size_t kPiece = 37;
    for (std::size_t at = 0; at < size; at += kPiece) reader.add(size, text.substr(at, kPiece));
  } catch (const Error& error) {
    fuzz::expect(error.code() == ExitCode::kLost && error.message().size() < 1024 &&
                     error.message().find('\n') == std::string::npos,
                 "a refusal");
    return 0;
  }
  if (reader.complete()) (void)reader.take();
  return 0;
}
