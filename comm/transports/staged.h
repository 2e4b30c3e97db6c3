#pragma once

#include <cstddef>
#include <memory>

#include "comm/transport.h"

namespace starling {

/// Size of one copy between device and host memory. Over PCIe 4.0 or 5.0 it takes 20 to 40 µs,
/// several times as long as issuing a copy and its event. It is a small part of a bucket, so that
/// the first message is sent early, and the last one soon after its copy.
inline constexpr std::size_t kStagedPieceBytes = 1 << 20;

/// Exchanges device tensors over a transport for host memory, piece by piece, so that copies and
/// messages overlap. The host never waits for the device. start_exchange() and start_sum() issue
/// copies to pinned host memory on the device's communication stream, after the work issued to its
/// compute and update streams; messages are sent as their pieces arrive (Flow). Received pieces are
/// copied to the device by the following calls, at the latest by wait(), which makes the current
/// stream wait for them. Pinned memory is reused. Host tensors are passed on unchanged. The
/// device's backend outlives the transport.
std::unique_ptr<Transport> make_staged_transport(std::unique_ptr<Transport> inner);

}  // namespace starling
