#pragma once

#include <memory>

#include "comm/transport.h"

namespace starling {

/// Carries tensors of a device over a transport of host memory: what is sent is copied to the host first, what arrives is copied to the
/// device in wait(). Copies run on the device's communication stream and are ordered after what its compute and update streams hold at the
/// start; the compute and update streams wait for what arrived. Host tensors pass through as they are.
std::unique_ptr<Transport> make_staged_transport(std::unique_ptr<Transport> inner);

}  // namespace starling
