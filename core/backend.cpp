#include "core/backend.h"

namespace starling {

std::shared_ptr<std::byte> Backend::allocate_host(std::size_t bytes) { return {new std::byte[bytes], std::default_delete<std::byte[]>()}; }

}  // namespace starling
