#include "core/backend.h"

#include "core/error.h"

namespace starling {

std::shared_ptr<std::byte> Backend::allocate_host(std::size_t bytes) {
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

void Backend::lacks(std::string_view operation) const {
  fail(ExitCode::kUsage, "backend",
       "the operation {} is not there on the backend \"{}\"; choose another device, or add it to "
       "this one",
       operation, description());
}

}  // namespace starling
