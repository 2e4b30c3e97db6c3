#include "kernels/cpu/cpu_backend.h"

#include <cstring>

#include "core/operations/updates.h"
#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/cpu/update.h"

namespace starling {
namespace {

class CpuStorage final : public Storage {
 public:
  CpuStorage(Backend& backend, std::shared_ptr<cpu::CachingAllocator> allocator,
             cpu::CachingAllocator::Block block, std::size_t bytes)
      : Storage(backend, block.data, bytes), allocator_(std::move(allocator)), block_(block) {}
  ~CpuStorage() override { allocator_->give_back(block_); }

 private:
  std::shared_ptr<cpu::CachingAllocator> allocator_;
  cpu::CachingAllocator::Block block_;
};

template <class T>
void fill_with(const Tensor& x, T value) {
  for (T& element : x.span<T>()) element = value;
}

cpu::AllKernels kernels_for(cpu::Isa isa) {
  cpu::AllKernels all{};
#define STARLING_ADD(name)                                                                         \
  cpu::select_isa<void (*)(cpu::AllKernels&)>(isa, cpu::scalar::add_##name, cpu::avx2::add_##name, \
                                              cpu::avx512::add_##name)(all);
  STARLING_KERNEL_FILES(STARLING_ADD)
#undef STARLING_ADD
  return all;
}

}  // namespace

CpuBackend::CpuBackend(int threads, cpu::Isa isa)
    : allocator_(std::make_shared<cpu::CachingAllocator>()),
      threads_(threads),
      isa_(std::min(isa, cpu::hardware_isa())),
      bf16_products_(isa_ == cpu::Isa::kAvx512 && cpu::fast_bf16()),
      kernels_(kernels_for(isa_)),
      dnnl_(*allocator_) {
  if (threads < 1)
    fail(ExitCode::kUsage, "cpu", "{} threads were asked for; at least 1 is needed", threads);
}

CpuBackend::~CpuBackend() = default;

std::string CpuBackend::description() const {
  return fmt::format("{}, {}, {} thread{}, {}", cpu::processor_name(), cpu::name_of(isa_),
                     threads_.count(), threads_.count() == 1 ? "" : "s", cpu::library_version());
}

std::shared_ptr<Storage> CpuBackend::allocate(std::size_t bytes) {
  const auto block = allocator_->take(bytes);
  try {
    return std::make_shared<CpuStorage>(*this, allocator_, block, bytes);
  } catch (const std::bad_alloc&) {
    allocator_->give_back(block);
    fail(ExitCode::kMemory, "memory",
         "out of memory: no room for a tensor's handle; {} bytes are in use by tensors",
         memory_stats().in_use);
  }
}

MemoryStats CpuBackend::memory_stats() const { return allocator_->stats(); }

void CpuBackend::copy(const Tensor& from, const Tensor& to) {
  require(from.dtype() == to.dtype() && from.elements() == to.elements(), "cpu",
          "copy of a {} {} tensor into a {} {} one", from.shape().text(), name_of(from.dtype()),
          to.shape().text(), name_of(to.dtype()));
  const std::byte* source = from.raw();
  std::byte* target = to.raw();
  threads_.parallel_for(static_cast<std::int64_t>(from.bytes()), 4 * cpu::kElementGrain,
                        [&](std::int64_t begin, std::int64_t end) {
                          std::memmove(target + begin, source + begin,
                                       static_cast<std::size_t>(end - begin));
                        });
}

void CpuBackend::copy_from_host(const void* from, const Tensor& to) {
  if (to.bytes() > 0) std::memcpy(to.raw(), from, to.bytes());
}
void CpuBackend::copy_to_host(const Tensor& from, void* to) {
  if (from.bytes() > 0) std::memcpy(to, from.raw(), from.bytes());
}

void CpuBackend::fill(const Tensor& x, double value) {
  switch (x.dtype()) {
    case DType::kFloat32: return fill_with(x, static_cast<float>(value));
    case DType::kFloat64: return fill_with(x, value);
    case DType::kBFloat16: return fill_with(x, BFloat16(static_cast<float>(value)));
    case DType::kFloat16: return fill_with(x, Float16(static_cast<float>(value)));
    case DType::kInt64: return fill_with(x, static_cast<std::int64_t>(value));
    case DType::kInt32: return fill_with(x, static_cast<std::int32_t>(value));
    case DType::kUInt8: return fill_with(x, static_cast<std::uint8_t>(value));
  }
}

void CpuBackend::issue(const Update& args) {
  threads_.enter();
  cpu::update(threads_, kernels_, args.rule, args.args);
}

}  // namespace starling
