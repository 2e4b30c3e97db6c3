#pragma once

#include <cstddef>
#include <memory>

#include "comm/transport.h"

namespace starling {

/// Bytes that a copy between a device and host memory moves at once. Over PCIe 4.0 or 5.0 it takes
/// 20 to 40 µs: several times as long as a copy and its event take to issue. It is a small part of
/// a bucket, so that the first message leaves early and the last one soon after its copy.
inline constexpr std::size_t kStagedPieceBytes = 1 << 20;

/// Carries tensors of a device over a transport of host memory, piece by piece, so that copies and
/// messages overlap; the host never waits for the device. start_exchange() and start_sum() issue
/// the copies to pinned host memory, on the device's communication stream behind what its compute
/// and update streams hold by then, and messages leave as their pieces are there (Flow). What has
/// come is copied to the device by the calls that follow, at the latest by wait(), which then has
/// the current stream wait for it. Pinned memory is kept and used again. Host tensors pass through
/// as they are. The device's backend outlives the transport.
std::unique_ptr<Transport> make_staged_transport(std::unique_ptr<Transport> inner);

}  // namespace starling
