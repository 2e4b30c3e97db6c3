#pragma once

#include <cstdint>
#include <string>

#include "core/backend.h"

// The seam to the CUDA plug-in, libstarling_cuda.so: the C functions that open_backend() and
// open_nccl() (comm/nccl/nccl.h) look up in it. The library is opened at run time, so that programs
// start, and run on CPUs, where neither the library nor CUDA is installed.

namespace starling {
class Nccl;

/// A function of the plug-in by its name, from the library next to this one, or else where the
/// loader searches. Null where the plug-in cannot be loaded or lacks it, with the reason in `why`.
/// The plug-in stays open: its code may run until the process ends.
void* cuda_plugin_function(const char* name, std::string& why);
}  // namespace starling

extern "C" {

/// Changes with the list of operations, and rises by 1000 with any other change of core/backend.h,
/// core/operations or this header; a plug-in of another version is refused.
constexpr std::uint32_t kStarlingCudaAbi = 8000 + starling::kOperations;

/// A plug-in's answer. On success `backend` is a new backend that the caller owns. Otherwise it is
/// null and `message` is one line (terminated, at most 511 bytes) with what is missing and the
/// remedy: no driver, no device, a driver too old.
struct StarlingCudaOpening {
  std::uint32_t abi;  ///< in: the caller's kStarlingCudaAbi
  /// in: this process's number among those of this host; rank i takes device i
  std::int32_t local_rank;
  std::int32_t local_size;  ///< in
  /// in: 1 lets several ranks use one device (rank i takes device i modulo their number)
  std::int32_t share;
  std::int32_t tf32;           ///< in: see BackendSettings
  std::int32_t benchmark;      ///< in
  std::int32_t deterministic;  ///< in
  starling::Backend* backend;  ///< out
  char message[512];           ///< out
};

/// The signature of the entry point, named kStarlingCudaEntry in the library. Never throws. Returns
/// the plug-in's own ABI version.
using StarlingCudaOpen = std::uint32_t (*)(StarlingCudaOpening*);

/// A plug-in's answer for NCCL: `nccl` is null, with the reason and the remedy in `message`, where
/// the plug-in was built without it. Needs no device.
struct StarlingNcclOpening {
  std::uint32_t abi;     ///< in: the caller's kStarlingCudaAbi
  starling::Nccl* nccl;  ///< out
  char message[512];     ///< out
};
/// Named kStarlingNcclEntry in the library. Never throws. Returns the plug-in's own ABI version.
using StarlingNcclOpen = std::uint32_t (*)(StarlingNcclOpening*);
}

constexpr const char* kStarlingCudaEntry = "starling_cuda_open";
constexpr const char* kStarlingNcclEntry = "starling_nccl_open";
constexpr const char* kStarlingCudaLibrary = "libstarling_cuda.so";
