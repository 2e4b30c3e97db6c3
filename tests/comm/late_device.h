#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "core/forwarding_backend.h"

namespace starling::test {

/// Plays a device whose communication stream is late: what is issued there waits for a thread of
/// the device's own, which takes its time. The other streams have done their work when a call
/// returns, and hold up the caller where they wait for an event of the communication stream; so a
/// wait that is missing shows in the numbers.
class LateDevice final : public ForwardingBackend {
 public:
  explicit LateDevice(Backend& inner,
                      std::chrono::microseconds delay = std::chrono::microseconds(20))
      : ForwardingBackend(inner), delay_(delay), thread_([this] { work(); }) {}
  ~LateDevice() override {
    {
      const std::lock_guard lock(mutex_);
      allowed_ = kAll;
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  DeviceType device() const override { return DeviceType::kCuda; }
  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    return std::make_shared<OwnStorage>(*this, ForwardingBackend::allocate(bytes));
  }
  std::shared_ptr<std::byte> allocate_host(std::size_t bytes) override {
    ++pinned;
    return ForwardingBackend::allocate_host(bytes);
  }
  void set_stream(StreamKind stream) override { stream_ = stream; }
  StreamKind stream() const override { return stream_; }
  Event record() override {
    const std::lock_guard lock(mutex_);
    return {stream_ == StreamKind::kCommunication ? issued_ : 0};
  }
  void wait(Event event) override {
    if (stream_ != StreamKind::kCommunication) come_to(event.id);
  }
  bool done(Event event) override {
    const std::lock_guard lock(mutex_);
    return event.id <= done_;
  }
  void synchronize(Event event) override { come_to(event.id); }
  void synchronize() override { come_to(issued_); }
  void copy_to_pinned(const Tensor& from, std::byte* to) override {
    ++sent;
    issue([from, to] { std::memcpy(to, from.raw(), from.bytes()); });
  }
  void copy_from_pinned(const std::byte* from, const Tensor& to) override {
    ++arrived;
    issue([from, to] { std::memcpy(to.raw(), from, to.bytes()); });
  }

  /// Lets the communication stream carry out `copies` more copies and no others from now on, until
  /// it is let go.
  void allow(std::uint64_t copies) {
    const std::lock_guard lock(mutex_);
    allowed_ = done_ + copies;
    changed_.notify_all();
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    allowed_ = kAll;
    changed_.notify_all();
  }

  /// Pieces copied from and to it, counted when they are issued
  std::atomic<int> sent{0}, arrived{0};
  std::atomic<int> pinned{0};  ///< allocations of pinned memory

 protected:
  void around(std::string_view, const std::function<void()>& operation) override { operation(); }

 private:
  static constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();
  class OwnStorage final : public Storage {
   public:
    OwnStorage(Backend& backend, std::shared_ptr<Storage> inner)
        : Storage(backend, inner->data(), inner->bytes()), inner_(inner) {}

   private:
    std::shared_ptr<Storage> inner_;
  };

  void issue(std::function<void()> copy) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(copy));
    ++issued_;
    changed_.notify_all();
  }
  void come_to(std::uint64_t place) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= place; });
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] {
        return (!queue_.empty() && done_ < allowed_) || (closing_ && queue_.empty());
      });
      if (queue_.empty()) return;
      const std::function<void()> copy = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(delay_);
      copy();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  StreamKind stream_ = StreamKind::kCompute;
  const std::chrono::microseconds delay_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t issued_ = 0, done_ = 0, allowed_ = kAll;  ///< copies
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace starling::test
