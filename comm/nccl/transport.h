#pragma once

#include <memory>

#include "comm/nccl/nccl.h"
#include "comm/transport.h"
#include "core/backend.h"
#include "core/error.h"

// This folder: exchanges between GPUs with NCCL. nccl.h: an interface to NCCL, which tests replace;
// library: NCCL itself, in the CUDA plug-in; transport: the Transport, which opens that; watchdog:
// a thread that aborts operations that hang.

namespace starling {

struct NcclSettings {
  double timeout_seconds = 300.0;
  int max_ctas = 0;             ///< 0: NCCL's own choice
  double watch_seconds = 0.05;  ///< polling interval of the watchdog
};

/// NCCL could not connect the ranks. Thrown on every rank, with the lowest failing rank's reason.
class NcclSetupError : public Error {
 public:
  explicit NcclSetupError(const std::string& message) : Error(ExitCode::kLost, {"nccl", message}) {}
};

/// Exchanges between GPUs with NCCL, in the order of issue, on the communication stream. The host
/// does not wait for the device, so only one lane at a time may have exchanges of GPU tensors in
/// flight. While an exchange waits for a late rank its kernel occupies part of the GPU
/// (NcclSettings::max_ctas).
///
/// start_exchange() makes the communication stream wait for the update and compute streams, so that
/// the sent data is final and no update reads a receive buffer. wait() makes the current stream
/// wait for the event after it, and throws what the watchdog has found so far. Neighbours: grouped
/// sends and receives on the world's communicator. Group sums: an all-reduce on the group's
/// communicator (made by prepare()), in NCCL's order of summation; sums of bf16, and of groups that
/// were not prepared, in shards, each by one member in rank order; kScatterSum and kGather are the
/// two halves of that. kNodes: a reduce-scatter within the node, exchange and mix of the shards,
/// and an all-gather. `control` is used for the control plane and host tensors.
///
/// The host does wait, up to the time limit, while NCCL sets up connections: at the start, in
/// prepare(), and in the first exchange with a peer. Buffers are registered at their first use, and
/// kept until the end.
///
/// A watchdog thread polls communicators for errors, and every exchange: one that has not completed
/// `timeout_seconds` after its data was ready and the preceding exchange complete counts as lost.
/// Then all communicators are aborted, so that nothing hangs, and all later calls throw
/// Error(kLost) with step, bucket, round, ranks and NCCL's message.
///
/// In a capture (comm/capture.h) the same calls become part of the graph; no memory is registered,
/// no event is queried, and tickets are valid until the graph's first launch. The watchdog treats
/// each launch as one exchange. What NCCL requires for graphs:
/// - All ranks of an operation capture it or none, and all capture and launch in the same order.
///   Each rank issues all operations to one stream, and launches graphs from the compute stream, so
///   that NCCL_LAUNCH_ORDER_IMPLICIT is not needed.
/// - Captured and other operations may alternate on a communicator (NCCL_GRAPH_MIXING_SUPPORT, on
///   by default).
/// - NCCL launches a group of a non-blocking communicator on a thread of its own. Therefore the
///   capture is in thread-local mode, and the transport calls nothing but NCCL until the
///   communicator is not busy. A call that fails in a capture aborts the communicators, and the
///   error says how to run without graphs.
/// - Connections are made before the capture, by an exchange with the same peers.
/// - Graphs must be destroyed before the transport.
///
/// Collective. Moves from `control` only on success: after a NcclSetupError the caller still has
/// it. The backend outlives the transport.
std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport>&& control,
                                               Backend& backend, std::unique_ptr<Nccl> nccl,
                                               const NcclSettings& settings);

}  // namespace starling
