#pragma once

#include <memory>

#include "comm/transport.h"

namespace starling {

/// A transport and world of the ranks that have this rank's place among `stride` consecutive ones:
/// its rank i is rank i · stride + place of `all`, which outlives it. All ranks of `all` make the
/// same calls, each in its own group.
std::unique_ptr<Transport> make_strided_transport(Transport& all, int stride);

}  // namespace starling
