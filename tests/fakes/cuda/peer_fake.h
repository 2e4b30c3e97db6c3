#pragma once

// How the fake runtime's shareable memory (memory files) is made to refuse. Processes of their own
// are told by STARLING_SHIM_REFUSE_PEERS, one of the words below.
namespace starling::cuda::shim {

/// What a call of the calling thread refuses from now on.
enum class PeerRefusal {
  kNone,
  kExport,  ///< "export": this device's memory cannot go to other processes
  kAccess,  ///< "access": this device reaches no other rank's, not even on the same device
  kCreate,  ///< "create": there is no memory
  kMap,     ///< "map": what came from another rank cannot be mapped
};
void refuse_peers(PeerRefusal what);

/// Maps blocks in place: from now on a block is at its owner's address in all threads of the
/// process, so that a record of calls shows whose accesses meet.
void map_in_place(bool in_place);

/// Blocks that are mapped now in this process, own and others'.
int mapped_blocks();

}  // namespace starling::cuda::shim
