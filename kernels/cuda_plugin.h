#pragma once

#include <cstdint>

#include "core/backend.h"

// The seam to the CUDA plug-in, libstarling_cuda.so: the one C function that open_backend() looks up in it. The library is
// opened at run time, so that programs start, and run on CPUs, where neither the library nor CUDA is installed.

extern "C" {

/// Rises with every change of core/backend.h or of this header; a plug-in of another version is refused.
constexpr std::uint32_t kStarlingCudaAbi = 3;

/// What a plug-in answers. On success `backend` is a new backend that the caller owns; otherwise it is null and `message` is one line
/// (terminated, at most 511 bytes) with what is missing and the remedy: no driver, no device, a driver too old.
struct StarlingCudaOpening {
  std::uint32_t abi;           ///< in: the caller's kStarlingCudaAbi
  std::int32_t local_rank;     ///< in: this process's number among those of this host; rank i takes device i
  std::int32_t local_size;     ///< in
  std::int32_t share;          ///< in: 1 lets several ranks use one device (rank i takes device i modulo their number)
  std::int32_t tf32;           ///< in: see BackendSettings
  std::int32_t benchmark;      ///< in
  std::int32_t deterministic;  ///< in
  starling::Backend* backend;  ///< out
  char message[512];           ///< out
};

/// The signature of the entry point, named kStarlingCudaEntry in the library. Never throws. Returns the plug-in's own ABI version.
using StarlingCudaOpen = std::uint32_t (*)(StarlingCudaOpening*);
}

constexpr const char* kStarlingCudaEntry = "starling_cuda_open";
constexpr const char* kStarlingCudaLibrary = "libstarling_cuda.so";
