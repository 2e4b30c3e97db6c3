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

/// Three sums of each lane, the lanes' in another order on every rank.
inline void check_lanes(Transport& transport, Backend& backend) {
  constexpr std::int64_t kCount = 1000;
  const int rank = transport.rank();
  const auto value = [](int of_rank, Lane lane, int k) {
    return of_rank + 10.0 * k + (lane == Lane::kAside ? 100.0 : 0.0);
  };
  std::vector<Tensor> sums[kLanes];
  std::vector<Ticket> tickets;
  const auto start = [&](Lane lane) {
    std::vector<Tensor>& of_lane = sums[static_cast<std::size_t>(lane)];
    const int k = static_cast<int>(of_lane.size());
    of_lane.emplace_back(backend, Shape{kCount}, DType::kFloat64);
    set_numbers(of_lane.back(), [&](std::int64_t) { return value(rank, lane, k); });
    tickets.push_back(transport.start_sum(of_lane.back(), of_lane.back(), {k, 0, k, lane}));
  };
  for (int place = 0; place < 6; ++place) {
    const bool aside = rank % 3 == 0 ? place % 2 == 0 : rank % 3 == 1 ? place < 3 : place >= 3;
    start(aside ? Lane::kAside : Lane::kSteps);
  }
  for (const Ticket ticket : tickets) transport.wait(ticket);
  for (const Lane lane : {Lane::kSteps, Lane::kAside}) {
    for (int k = 0; k < 3; ++k) {
      double expected = 0.0;
      for (int r = 0; r < transport.size(); ++r) expected += value(r, lane, k);
      const std::vector<double> found =
          numbers(sums[static_cast<std::size_t>(lane)][static_cast<std::size_t>(k)]);
      CHECK(std::all_of(found.begin(), found.end(), [&](double v) { return v == expected; }));
    }
  }
}

}  // namespace starling::test
