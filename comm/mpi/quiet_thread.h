#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace starling::detail {

/// A thread that no signal is for: those of the process go to the thread that waits for them.
template <class Run>
std::thread start_quiet_thread(Run&& run) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread takes over the mask
  std::thread thread(std::forward<Run>(run));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace starling::detail
