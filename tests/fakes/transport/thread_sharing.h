#pragma once

#include <memory>
#include <string>

#include "comm/shared/memory_sharing.h"

namespace starling {

/// Memory shared between the threads of one process, on hosts by name; `refuse` makes this rank
/// fail, as if there were no memory.
std::unique_ptr<MemorySharing> make_thread_sharing(std::string host, bool refuse);

}  // namespace starling
