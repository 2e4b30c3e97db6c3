#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/device_clock.h"
#include "core/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {
namespace {

/// Timed events, relative to a reference event whose host time is known.
class CudaClock final : public DeviceClock {
 public:
  explicit CudaClock(CudaBackend& backend) : backend_(backend), reference_(create_timed_event()) {
    backend.synchronize();  // pending work would delay the reference
    record_event(reference_, backend.handle());
    host_wait(reference_);
    reference_time_ = std::chrono::steady_clock::now();
  }
  ~CudaClock() override {
    for (const auto& [mark, event] : marks_) destroy_event(event);
    for (const EventHandle event : free_) destroy_event(event);
    destroy_event(reference_);
  }

  Mark mark() override {
    if (free_.empty()) free_.push_back(create_timed_event());
    const EventHandle event = free_.back();
    record_event(event, backend_.handle());
    free_.pop_back();
    marks_.emplace(++last_, event);
    return last_;
  }

  std::optional<Time> time_of(Mark mark) override {
    const auto it = marks_.find(mark);
    require(it != marks_.end(), "cuda", "a time of mark {} is asked for, which is not there", mark);
    EventHandle event = it->second;
    if (!event_done(event)) return std::nullopt;
    const double seconds = seconds_between(reference_, event);
    const Time time = reference_time_ + std::chrono::duration_cast<Time::duration>(
                                            std::chrono::duration<double>(seconds));
    marks_.erase(it);
    if (seconds > kFar) {
      reference_time_ = time;
      std::swap(reference_, event);
    }
    free_.push_back(event);
    return time;
  }

 private:
  /// The driver returns milliseconds in fp32; the reference is renewed after this many seconds,
  /// before rounding matters.
  static constexpr double kFar = 1.0;

  CudaBackend& backend_;
  EventHandle reference_;
  Time reference_time_;
  std::map<Mark, EventHandle> marks_;
  std::vector<EventHandle> free_;
  Mark last_ = 0;
};

}  // namespace

std::unique_ptr<DeviceClock> CudaBackend::device_clock() {
  return std::make_unique<CudaClock>(*this);
}

}  // namespace starling::cuda
