#include "tests/fakes/cuda/context.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "core/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__)
// Saves the registers that a function call keeps and the stack pointer (to *save), and takes up
// those of `load`.
extern "C" void starling_shim_switch(void** save, void* load);
asm(R"(
.text
.p2align 4
.globl starling_shim_switch
.hidden starling_shim_switch
.type starling_shim_switch, @function
starling_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size starling_shim_switch, .-starling_shim_switch
)");
#endif

namespace starling::cuda::shim {
namespace {

constexpr std::size_t kStack = 256 << 10;  // reserved; pages come with use

Context* arriving = nullptr;  ///< the one being switched to
Context* leaving = nullptr;

}  // namespace

Context::Context() = default;

Context::Context(void (*entry)()) : entry_(entry), size_(kStack) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  stack_ = mmap(nullptr, kStack + page, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack_ == MAP_FAILED)
    fail(ExitCode::kMemory, "shim", "no memory for the stack of a fiber ({} bytes)", kStack);
  mprotect(stack_, page, PROT_NONE);  // an overflow stops here
  auto* base = static_cast<std::byte*>(stack_) + page;
  bottom_ = base;
#if defined(__x86_64__)
  // Stacks begin at different lines of a page: at the same one, all would want one set of the
  // cache.
  static unsigned made = 0;
  const std::size_t below = std::size_t{made++ % 64} * 64;
  // What the first switch pops: six registers, then begin()'s address; at its entry the stack is 8
  // off a multiple of 16, as after a call.
  auto* top = reinterpret_cast<std::uintptr_t*>(base + kStack - below) - 1;
  *--top = reinterpret_cast<std::uintptr_t>(&Context::begin);
  for (int i = 0; i < 6; ++i) *--top = 0;
  top_ = top;
#else
  getcontext(&state_);
  state_.uc_stack.ss_sp = base;
  state_.uc_stack.ss_size = kStack;
  state_.uc_link = nullptr;
  makecontext(&state_, &Context::begin, 0);
#endif
#if defined(__SANITIZE_THREAD__)
  tsan_ = __tsan_create_fiber(0);
#endif
}

Context::~Context() {
  if (!stack_) return;
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(tsan_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(bottom_, size_);
#endif
  munmap(stack_, size_ + static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

void Context::begin() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &leaving->bottom_, &leaving->size_);
#endif
  arriving->entry_();
  __builtin_trap();
}

void Context::switch_to(Context& from, Context& to) {
  arriving = &to;
  leaving = &from;
#if defined(__SANITIZE_THREAD__)
  if (!from.stack_) from.tsan_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.tsan_, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.size_);
#endif
#if defined(__x86_64__)
  starling_shim_switch(&from.top_, to.top_);
#else
  swapcontext(&from.state_, &to.state_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  // Back again: `leaving` is who came here, and its stack is told for the next switch to it.
  __sanitizer_finish_switch_fiber(from.fake_stack_, &leaving->bottom_, &leaving->size_);
#endif
}

}  // namespace starling::cuda::shim
