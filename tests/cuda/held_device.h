#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/fakes/cuda/recorder.h"

namespace starling::tests {

/// While it lives the device does nothing until somebody waits, or until it is told to
/// (shim::hold_events).
class HeldDevice {
 public:
  HeldDevice() { cuda::shim::hold_events(true); }
  ~HeldDevice() { cuda::shim::hold_events(false); }
  HeldDevice(const HeldDevice&) = delete;
  HeldDevice& operator=(const HeldDevice&) = delete;
};

/// While it lives the device is held, and comes to what was recorded some milliseconds before: so
/// threads of the host that wait for it, asking again and again, get their answer late.
class LaggingDevice {
 public:
  LaggingDevice() {
    thread_ = std::thread([this] {
      while (!stop_) {
        const std::uint64_t told = cuda::shim::recordings();
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        cuda::shim::let_events_to(told);
      }
    });
  }
  ~LaggingDevice() {
    stop_ = true;
    thread_.join();
  }
  LaggingDevice(const LaggingDevice&) = delete;
  LaggingDevice& operator=(const LaggingDevice&) = delete;

 private:
  const HeldDevice held_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace starling::tests
