#include "core/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace starling {

std::string checksum(const void* data, std::size_t bytes) { return fmt::format("{:016x}", XXH3_64bits(data, bytes)); }

}  // namespace starling
