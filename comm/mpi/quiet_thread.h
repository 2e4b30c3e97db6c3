#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace starling::detail {

/// A thread with all signals blocked, so that they go to the thread that waits for them.
template <class Run>
std::thread start_quiet_thread(Run&& run) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  std::thread thread(std::forward<Run>(run));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace starling::detail
