#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/dtype.h"

// The calls of NCCL that the transport makes, and no others, as kernels/cuda/runtime/runtime.h has
// those of the CUDA runtime. nccl_library.cpp makes them, in the CUDA plug-in;
// tests/fakes/nccl/nccl_fake.h carries them out among the threads of a process, with a record that
// tests walk; no_nccl.cpp stands for an absent NCCL.
namespace starling {

using NcclComm = void*;  ///< ncclComm_t

struct NcclId {
  std::array<char, 128> bytes{};
};

/// What a communicator says of itself (ncclCommGetAsyncError).
enum class NcclState : std::uint8_t {
  kReady,
  kBusy,    ///< a call on it has not returned its result yet: no other call but abort() may follow
  kFailed,  ///< see error()
};

/// Communicators are non-blocking: init(), split(), group_end() return at once, and state() says
/// when they are through. Pointers are device memory, streams cudaStream_t. A call that NCCL
/// refuses is Error(kLost) with the call's name and NCCL's own message. state(), error() and
/// abort() may come from another thread, but no two calls at once; abort() may come while a
/// communicator is busy.
class Nccl {
 public:
  virtual ~Nccl() = default;
  virtual std::string version() const = 0;  ///< "2.28.9"
  /// The calling thread's device as NCCL tells the devices of a host apart: by its bus address.
  virtual std::string device() = 0;
  virtual NcclId make_id() = 0;
  /// Makes a communicator on the calling thread's device. max_ctas: the thread blocks that a
  /// communicator's kernels may take; 0 leaves it to NCCL.
  virtual NcclComm init(const NcclId& id, int ranks, int rank, int max_ctas) = 0;
  /// Members of one color form a communicator, ranked by `key`, with the parent's settings; color
  /// -1 joins none. Collective over `parent`, which is busy until `joined` is written (null where
  /// none was joined), and which shares its resources.
  virtual void split(NcclComm parent, int color, int key, NcclComm& joined) = 0;
  virtual NcclState state(NcclComm comm) = 0;
  /// NCCL's last words on it, in one line; may be empty
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
  /// Registers memory for zero-copy; null where NCCL cannot, which is no error.
  virtual void* register_buffer(NcclComm comm, void* data, std::size_t bytes) = 0;
  virtual void deregister_buffer(NcclComm comm, void* handle) noexcept = 0;
  virtual void destroy(NcclComm comm) noexcept = 0;
  /// Ends all that is under way on it, on this rank; what streams held of it returns, its numbers
  /// are void.
  virtual void abort(NcclComm comm) noexcept = 0;
  /// Makes the device of init() the calling thread's: first of all in another thread.
  virtual void use_device() noexcept {}
};

/// NCCL as the CUDA plug-in has it; null with the reason in one line, and the remedy, in `why`.
std::unique_ptr<Nccl> open_nccl(std::string& why);

}  // namespace starling
