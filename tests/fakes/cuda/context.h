#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace starling::cuda::shim {

/// A flow of control with a stack of its own, or (made without an entry) the thread's own one.
/// Changing to another on x86-64 saves the registers that a call keeps, nothing else: swapcontext
/// makes a system call each time, and a block of 256 threads changes 256 times a barrier.
class Context {
 public:
  Context();
  /// `entry` never returns.
  explicit Context(void (*entry)());
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  static void switch_to(Context& from, Context& to);

 private:
  static void begin();

  void (*entry_)() = nullptr;
  void* stack_ = nullptr;
  void* fake_stack_ = nullptr;  ///< the address sanitizer's
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
  void* tsan_ = nullptr;
#if defined(__x86_64__)
  void* top_ = nullptr;  ///< the stack pointer while others run
#else
  ucontext_t state_{};
#endif
};

}  // namespace starling::cuda::shim
