#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/dtype.h"

// An interface with the NCCL calls that the transport makes, as kernels/cuda/runtime/runtime.h has
// those of the CUDA runtime. Implemented by library.cpp, in the CUDA plug-in, and for tests by
// tests/fakes/nccl/nccl_fake.h, between threads of a process and with a log of all calls.
namespace starling {

using NcclComm = void*;  ///< ncclComm_t

struct NcclId {
  std::array<char, 128> bytes{};
};

/// The state of a communicator (ncclCommGetAsyncError).
enum class NcclState : std::uint8_t {
  kReady,
  kBusy,    ///< a call is in progress, so only abort() may be called
  kFailed,  ///< see error()
};

/// Communicators are non-blocking: init(), split() and group_end() return at once, and state()
/// tells when they have completed. Pointers are device memory, streams cudaStream_t. Failed calls
/// throw Error(kLost) with the call's name and NCCL's message. state(), error() and abort() may be
/// called on another thread, but not concurrently; abort() also while a communicator is busy.
class Nccl {
 public:
  virtual ~Nccl() = default;
  virtual std::string version() const = 0;  ///< "2.28.9"
  /// PCI bus address of the calling thread's device.
  virtual std::string device() = 0;
  virtual NcclId make_id() = 0;
  /// Makes a communicator on the calling thread's device. max_ctas: limit on the thread blocks of
  /// its kernels; 0: NCCL's default.
  virtual NcclComm init(const NcclId& id, int ranks, int rank, int max_ctas) = 0;
  /// Ranks with the same color form a communicator, ordered by `key`, with the parent's settings
  /// and resources; color -1: none. Collective over `parent`, which is busy until `joined` is set
  /// (null for color -1).
  virtual void split(NcclComm parent, int color, int key, NcclComm& joined) = 0;
  virtual NcclState state(NcclComm comm) = 0;
  /// NCCL's last error message, in one line; may be empty
  virtual std::string error(NcclComm comm) = 0;
  virtual void group_start() = 0;
  virtual void group_end() = 0;
  virtual void send(const void* from, std::size_t bytes, int peer, NcclComm comm, void* stream) = 0;
  virtual void receive(void* to, std::size_t bytes, int peer, NcclComm comm, void* stream) = 0;
  // Sums; dtype is fp32 or fp64, counts are elements.
  virtual void all_reduce(const void* from, void* to, std::size_t count, DType dtype, NcclComm comm,
                          void* stream) = 0;
  virtual void reduce_scatter(const void* from, void* to, std::size_t count_each, DType dtype,
                              NcclComm comm, void* stream) = 0;
  virtual void all_gather(const void* from, void* to, std::size_t count_each, DType dtype,
                          NcclComm comm, void* stream) = 0;
  /// Registers memory for zero-copy transfers; null if not supported, which is not an error.
  virtual void* register_buffer(NcclComm comm, void* data, std::size_t bytes) = 0;
  virtual void deregister_buffer(NcclComm comm, void* handle) noexcept = 0;
  virtual void destroy(NcclComm comm) noexcept = 0;
  /// Aborts all operations of this rank on it: their kernels return, and their results are invalid.
  virtual void abort(NcclComm comm) noexcept = 0;
  /// Makes the device of init() current. To be called first on other threads.
  virtual void use_device() noexcept {}
};

/// Opens NCCL through the CUDA plug-in. Null on failure, with the reason and a remedy in `why`.
std::unique_ptr<Nccl> open_nccl(std::string& why);

}  // namespace starling
