#pragma once

#include <cstdint>

namespace starling {

/// How often the calling thread has asked the heap for memory (operator new) since it began.
std::uint64_t heap_requests();

}  // namespace starling
