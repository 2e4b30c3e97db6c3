#pragma once

#include <cstdint>
#include <string>

#include "core/backend.h"

// The interface to the CUDA plug-in libstarling_cuda.so: C functions that open_backend() and
// open_nccl() (comm/nccl/nccl.h) look up. The library is loaded at run time, so that programs run
// on CPUs without it and without CUDA.

namespace starling {
class Nccl;

/// Looks up a function of the plug-in, which is loaded from this library's folder or the loader's
/// search path, and never unloaded. Null on failure, with the reason in `why`.
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
