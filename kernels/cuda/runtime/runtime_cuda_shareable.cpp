#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "core/error.h"
#include "kernels/cuda/runtime/runtime.h"

// Shareable memory needs the driver API (cuMem…). Its functions are looked up through the runtime,
// since a program linked with libcuda does not start without a driver.
namespace starling::cuda {
namespace {

void checked(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    fail(ExitCode::kInternal, "cuda", "{}: {} ({})", call, cudaGetErrorString(error),
         cudaGetErrorName(error));
}

template <class F>
F entry(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  checked(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found),
          name);
  if (found != cudaDriverEntryPointSuccess || !function)
    fail(ExitCode::kInternal, "cuda", "the driver has no {}; a newer one has", name);
  return reinterpret_cast<F>(function);
}

struct Driver {
  PFN_cuGetErrorString_v6000 error_string = entry<PFN_cuGetErrorString_v6000>("cuGetErrorString");
  PFN_cuDeviceGet_v2000 device = entry<PFN_cuDeviceGet_v2000>("cuDeviceGet");
  PFN_cuDeviceGetAttribute_v2000 attribute =
      entry<PFN_cuDeviceGetAttribute_v2000>("cuDeviceGetAttribute");
  PFN_cuMemGetAllocationGranularity_v10020 granularity =
      entry<PFN_cuMemGetAllocationGranularity_v10020>("cuMemGetAllocationGranularity");
  PFN_cuMemCreate_v10020 create = entry<PFN_cuMemCreate_v10020>("cuMemCreate");
  PFN_cuMemRelease_v10020 release = entry<PFN_cuMemRelease_v10020>("cuMemRelease");
  PFN_cuMemExportToShareableHandle_v10020 export_handle =
      entry<PFN_cuMemExportToShareableHandle_v10020>("cuMemExportToShareableHandle");
  PFN_cuMemImportFromShareableHandle_v10020 import_handle =
      entry<PFN_cuMemImportFromShareableHandle_v10020>("cuMemImportFromShareableHandle");
  PFN_cuMemAddressReserve_v10020 reserve =
      entry<PFN_cuMemAddressReserve_v10020>("cuMemAddressReserve");
  PFN_cuMemAddressFree_v10020 free_address = entry<PFN_cuMemAddressFree_v10020>("cuMemAddressFree");
  PFN_cuMemMap_v10020 map = entry<PFN_cuMemMap_v10020>("cuMemMap");
  PFN_cuMemUnmap_v10020 unmap = entry<PFN_cuMemUnmap_v10020>("cuMemUnmap");
  PFN_cuMemSetAccess_v10020 set_access = entry<PFN_cuMemSetAccess_v10020>("cuMemSetAccess");
};
const Driver& driver() {
  static const Driver one;
  return one;
}

void checked(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  if (driver().error_string(result, &text) != CUDA_SUCCESS || !text) text = "an unknown error";
  fail(result == CUDA_ERROR_OUT_OF_MEMORY ? ExitCode::kMemory : ExitCode::kInternal, "cuda",
       "{}: {} ({})", call, text, static_cast<int>(result));
}

bool has(int device, CUdevice_attribute attribute) {
  CUdevice handle = 0;
  int value = 0;
  checked(driver().device(&handle, device), "cuDeviceGet");
  checked(driver().attribute(&value, attribute, handle), "cuDeviceGetAttribute");
  return value != 0;
}

CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  // Buckets are allocated here, and a network card may send them directly.
  properties.allocFlags.gpuDirectRDMACapable =
      has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) ? 1 : 0;
  return properties;
}

/// The size rounded up to the granularity, which is the same on all devices that can share; so the
/// size identifies the mapping.
std::size_t whole(int device, std::size_t bytes) {
  const CUmemAllocationProp properties = properties_of(device);
  std::size_t granularity = 0;
  checked(driver().granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
          "cuMemGetAllocationGranularity");
  return (bytes + granularity - 1) / granularity * granularity;
}

/// Owns a reference to a memory allocation, which lives as long as anyone refers to it or maps it.
struct Handle {
  CUmemGenericAllocationHandle value = 0;
  bool held = false;
  ~Handle() {
    if (held) driver().release(value);
  }
};

void* map_whole(int device, const Handle& memory, std::size_t size) {
  CUdeviceptr address = 0;
  checked(driver().reserve(&address, size, 0, 0, 0), "cuMemAddressReserve");
  try {
    checked(driver().map(address, size, 0, memory.value, 0), "cuMemMap");
    try {
      CUmemAccessDesc access{};
      access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      checked(driver().set_access(address, size, &access, 1), "cuMemSetAccess");
    } catch (...) {
      driver().unmap(address, size);
      throw;
    }
  } catch (...) {
    driver().free_address(address, size);
    throw;
  }
  return reinterpret_cast<void*>(address);
}

std::string text_of(const cudaUUID_t& uuid) {
  std::string text;
  for (const char byte : uuid.bytes)
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

}  // namespace

std::string device_uuid(int device) {
  cudaDeviceProp properties{};
  checked(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return text_of(properties.uuid);
}

std::string why_not_shareable(int device) {
  try {
    if (!has(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
      return "its GPU has no virtual memory management";
    if (!has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
      return "its GPU's memory cannot be exported as a file descriptor";
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string why_not_reachable(int device, const std::string& uuid) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  for (int other = 0; other < count; ++other) {
    if (device_uuid(other) != uuid) continue;
    int can = other == device;
    if (!can) checked(cudaDeviceCanAccessPeer(&can, device, other), "cudaDeviceCanAccessPeer");
    return can ? "" : "the GPUs cannot access each other's memory (cudaDeviceCanAccessPeer)";
  }
  return "it does not see that GPU (CUDA_VISIBLE_DEVICES)";
}

void* shareable_allocate(int device, std::size_t bytes, int& descriptor) {
  const std::size_t size = whole(device, bytes);
  const CUmemAllocationProp properties = properties_of(device);
  Handle memory;
  checked(driver().create(&memory.value, size, &properties, 0), "cuMemCreate");
  memory.held = true;
  int file = -1;
  checked(driver().export_handle(&file, memory.value, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          "cuMemExportToShareableHandle");
  try {
    void* address = map_whole(device, memory, size);
    descriptor = file;
    return address;
  } catch (...) {
    close(file);
    throw;
  }
}

void* shareable_map(int device, int descriptor, std::size_t bytes) {
  Handle memory;
  auto* file = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
  checked(driver().import_handle(&memory.value, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle");
  memory.held = true;
  return map_whole(device, memory, whole(device, bytes));
}

void shareable_free(int device, void* memory, std::size_t bytes) noexcept {
  try {
    const auto address = reinterpret_cast<CUdeviceptr>(memory);
    const std::size_t size = whole(device, bytes);
    driver().unmap(address, size);
    driver().free_address(address, size);
  } catch (const Error&) {  // the device is lost, with its memory
  }
}

}  // namespace starling::cuda
