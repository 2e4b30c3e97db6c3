#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "comm/nccl/nccl.h"
#include "core/error.h"
#include "kernels/cuda_plugin.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0),
              "NCCL 2.18 is the oldest with ncclCommSplit");

// Implements comm/nccl/nccl.h with NCCL. Part of the CUDA plug-in, and the only source that
// includes NCCL's header. All operations of a rank go to one stream in the same order on all ranks,
// so several communicators on a device need no launch order from NCCL.
namespace starling {
namespace {

std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Throws if a call failed. "In progress" is not an error: Nccl::state() has the result later.
void check(ncclResult_t result, const char* call, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const std::string words = one_line(ncclGetLastError(comm));
  fail(ExitCode::kLost, "nccl", "{}: {}{}", call, ncclGetErrorString(result),
       words.empty() ? "" : " (" + words + ")");
}

void check_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    fail(ExitCode::kInternal, "nccl", "{}: {} ({})", call, cudaGetErrorString(error),
         cudaGetErrorName(error));
}

ncclComm_t of(NcclComm comm) { return static_cast<ncclComm_t>(comm); }
cudaStream_t of_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

ncclDataType_t type_of(DType dtype) {
  require(dtype == DType::kFloat32 || dtype == DType::kFloat64, "nccl", "a sum of {}",
          name_of(dtype));
  return dtype == DType::kFloat64 ? ncclFloat64 : ncclFloat32;
}

class NcclLibrary final : public Nccl {
 public:
  std::string version() const override {
    int code = 0;
    if (ncclGetVersion(&code) != ncclSuccess) return "of an unknown version";
    return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
  }

  std::string device() override {
    int device = 0;
    char address[32] = {};
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetPCIBusId(address, sizeof address, device), "cudaDeviceGetPCIBusId");
    return address;
  }

  NcclId make_id() override {
    static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));
    ncclUniqueId unique;
    check(ncclGetUniqueId(&unique), "ncclGetUniqueId", nullptr);
    NcclId id;
    std::memcpy(id.bytes.data(), unique.internal, sizeof unique.internal);
    return id;
  }

  NcclComm init(const NcclId& id, int ranks, int rank, int max_ctas) override {
    check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
    // In a capture NCCL would register buffers, with handshakes between ranks that hang if a rank's
    // capture has failed.
    setenv("NCCL_GRAPH_REGISTER", "0", 0);
    ncclUniqueId unique;
    std::memcpy(unique.internal, id.bytes.data(), sizeof unique.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 1;  // group communicators share the world's buffers and abort flag
    if (max_ctas > 0) config.maxCTAs = max_ctas;
    ncclComm_t comm = nullptr;
    check(ncclCommInitRankConfig(&comm, ranks, unique, rank, &config), "ncclCommInitRankConfig",
          comm);
    return comm;
  }

  void split(NcclComm parent, int color, int key, NcclComm& joined) override {
    // A thread of NCCL writes `joined`; a null configuration means the parent's.
    static_assert(sizeof(NcclComm) == sizeof(ncclComm_t));
    check(ncclCommSplit(of(parent), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key,
                        reinterpret_cast<ncclComm_t*>(&joined), nullptr),
          "ncclCommSplit", of(parent));
  }

  NcclState state(NcclComm comm) override {
    ncclResult_t result = ncclSuccess;
    if (ncclCommGetAsyncError(of(comm), &result) != ncclSuccess) return NcclState::kFailed;
    last_result_ = result == ncclInProgress ? ncclSuccess : result;
    return result == ncclSuccess      ? NcclState::kReady
           : result == ncclInProgress ? NcclState::kBusy
                                      : NcclState::kFailed;
  }
  std::string error(NcclComm comm) override {
    const std::string words = one_line(ncclGetLastError(of(comm)));
    if (last_result_ == ncclSuccess) return words;
    return fmt::format("{}{}", ncclGetErrorString(last_result_),
                       words.empty() ? "" : " (" + words + ")");
  }

  void group_start() override { check(ncclGroupStart(), "ncclGroupStart", nullptr); }
  void group_end() override { check(ncclGroupEnd(), "ncclGroupEnd", nullptr); }
  void send(const void* from, std::size_t bytes, int peer, NcclComm comm, void* stream) override {
    check(ncclSend(from, bytes, ncclUint8, peer, of(comm), of_stream(stream)), "ncclSend",
          of(comm));
  }
  void receive(void* to, std::size_t bytes, int peer, NcclComm comm, void* stream) override {
    check(ncclRecv(to, bytes, ncclUint8, peer, of(comm), of_stream(stream)), "ncclRecv", of(comm));
  }
  void all_reduce(const void* from, void* to, std::size_t count, DType dtype, NcclComm comm,
                  void* stream) override {
    check(ncclAllReduce(from, to, count, type_of(dtype), ncclSum, of(comm), of_stream(stream)),
          "ncclAllReduce", of(comm));
  }
  void reduce_scatter(const void* from, void* to, std::size_t count_each, DType dtype,
                      NcclComm comm, void* stream) override {
    check(ncclReduceScatter(from, to, count_each, type_of(dtype), ncclSum, of(comm),
                            of_stream(stream)),
          "ncclReduceScatter", of(comm));
  }
  void all_gather(const void* from, void* to, std::size_t count_each, DType dtype, NcclComm comm,
                  void* stream) override {
    check(ncclAllGather(from, to, count_each, type_of(dtype), of(comm), of_stream(stream)),
          "ncclAllGather", of(comm));
  }

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  void* register_buffer(NcclComm comm, void* data, std::size_t bytes) override {
    void* handle = nullptr;
    return ncclCommRegister(of(comm), data, bytes, &handle) == ncclSuccess ? handle : nullptr;
  }
  void deregister_buffer(NcclComm comm, void* handle) noexcept override {
    ncclCommDeregister(of(comm), handle);
  }
#else
  void* register_buffer(NcclComm, void*, std::size_t) override { return nullptr; }
  void deregister_buffer(NcclComm, void*) noexcept override {}
#endif

  void destroy(NcclComm comm) noexcept override { ncclCommDestroy(of(comm)); }
  void abort(NcclComm comm) noexcept override { ncclCommAbort(of(comm)); }
  void use_device() noexcept override {
    if (device_ >= 0) cudaSetDevice(device_);
  }

 private:
  int device_ = -1;
  ncclResult_t last_result_ = ncclSuccess;
};

}  // namespace
}  // namespace starling

extern "C" __attribute__((visibility("default"))) std::uint32_t starling_nccl_open(
    StarlingNcclOpening* opening) {
  opening->nccl = new (std::nothrow) starling::NcclLibrary;
  constexpr char kMessage[] = "no memory";
  std::memcpy(opening->message, kMessage, sizeof kMessage);
  return kStarlingCudaAbi;
}
