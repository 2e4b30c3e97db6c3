#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "comm/transports/forwarding.h"
#include "support.h"

namespace starling::test {

/// Times at which a rank began averages and added them, in order.
struct AverageLog {
  struct Event {
    int before_step = 0;
    bool begins = false;  ///< or is added
  };
  std::vector<Event> events;
  std::size_t begun() const {
    return static_cast<std::size_t>(std::count_if(events.begin(), events.end(),
                                                  [](const Event& event) { return event.begins; }));
  }
};

/// Another transport, whose averages are written down: the begin of the first bucket's and the end
/// of the last. What comes after the control plane was asked is after the step's end.
class AverageRecorder final : public ForwardingTransport {
 public:
  AverageRecorder(Transport& inner, AverageLog& log)
      : ForwardingTransport(inner, world_),
        world_(inner.world(), [this] { before_step_ = step_ + 1; }),
        log_(log) {}
  void begin_step(int step) { before_step_ = step_ = step; }
  /// Waits until the average under way may be added; a moment at most, as others may have taken
  /// their last step already.
  void await_average() {
    for (int looks = 0; looks < 50 && !std::all_of(under_way_.begin(), under_way_.end(),
                                                   [&](Ticket ticket) { return done(ticket); });
         ++looks)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    const Ticket ticket = ForwardingTransport::start_sum(in, out, label, std::move(flow));
    if (label.lane != Lane::kAside) return ticket;
    under_way_.push_back(ticket);
    if (label.bucket == 0) log_.events.push_back({before_step_, true});
    return ticket;
  }
  void wait(Ticket ticket) override {
    ForwardingTransport::wait(ticket);
    if (std::erase(under_way_, ticket) > 0 && under_way_.empty())
      log_.events.push_back({before_step_, false});
  }

 private:
  CheckedWorld world_;
  AverageLog& log_;
  int step_ = -1, before_step_ = 0;
  std::vector<Ticket> under_way_;
};

/// Runs the job and keeps a log. With `apart` above 0, in one of so many steps a rank waits a
/// moment for the average under way, so that several come.
inline std::vector<double> run_job_logged(const Job& job, Transport& transport, Backend& backend,
                                          AverageLog& log, int apart = 0) {
  AverageRecorder recorder(transport, log);
  Job mine = job;
  mine.lr_at = [&](int step) {
    const double lr = job.lr_at ? job.lr_at(step) : job.lr;
    recorder.begin_step(step);
    if (apart > 0 && step % apart == apart - 1) recorder.await_average();
    return lr;
  };
  return run_job(mine, recorder, backend);
}

}  // namespace starling::test
