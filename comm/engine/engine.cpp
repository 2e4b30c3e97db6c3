#include "comm/engine/engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <exception>

#include "comm/flight.h"
#include "comm/transports/checks.h"
#include "core/error.h"
#include "core/log.h"

namespace starling::detail {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Time without movement, before a waiting caller sleeps.
constexpr auto kSpin = microseconds(100);
constexpr auto kCallerSleep = microseconds(20);  // first sleep of a waiting caller, growing to
constexpr auto kCallerSleepMost = microseconds(100);
// Sleeps of the thread while the caller computes. Each poll interrupts the computation if all cores
// compute (four hosts on two cores, with computation as long as the exchange: 4 % of the step
// between 50 and 200 µs). It made no network that was tried slower.
constexpr auto kThreadSleep = microseconds(200);
constexpr auto kThreadSleepMost = microseconds(400);
constexpr auto kIdleLook = milliseconds(200);  // with nothing under way: for other ranks' questions
constexpr auto kAskAfter = std::chrono::seconds(1);
constexpr double kLeastLateSeconds = 1.5;  // a rank is not called late before it could answer

/// Operations whose memory the library may still touch after a lost rank: kept for good.
std::vector<std::shared_ptr<WireOperation>>& graveyard() {
  static auto* kept = new std::vector<std::shared_ptr<WireOperation>>();
  return *kept;
}

/// A collective call of the control plane; all else belongs to a lane of exchanges.
bool is_call(const WireOperation& operation) {
  return operation.label().step < 0 && operation.label().bucket < 0;
}

}  // namespace

WireEngine::WireEngine(std::unique_ptr<Wire> wire, double timeout_seconds)
    : timeout_(timeout_seconds),
      wire_(std::move(wire)),
      late_(timeout_seconds, kLeastLateSeconds),
      exceptions_at_start_(std::uncaught_exceptions()) {
  // The timer slack in ns, of this thread and the one below: otherwise every short sleep takes 50
  // µs more
  prctl(PR_SET_TIMERSLACK, 1000UL);
  thread_ = std::thread([this] { run(); });
}

WireEngine::~WireEngine() {
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  if (!unwinding && !failed_) {
    try {
      const auto limit = Clock::now() + Clock::seconds(lost_ ? std::min(timeout_, 1.0) : timeout_);
      for (const auto& [ticket, operation] : tickets_) {
        if (!wait_until(*operation, limit, nullptr)) break;
      }
    } catch (const Error&) {  // the wire itself failed: what is left is given up below
    }
  }
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  const std::scoped_lock lock(wire_->lock());
  for (auto& operation : queue_) active_.push_back(std::move(operation));
  std::erase_if(active_, [](const auto& operation) { return operation->finished(); });
  if (any_lost_rank()) wire_->revoke();  // others may still wait for this rank
  if ((!active_.empty() || any_lost_rank()) && wire_->abandon()) {
    for (auto& operation : active_) graveyard().push_back(std::move(operation));
    static_cast<void>(wire_.release());  // the operations refer to it
  }
}

Ticket WireEngine::start(std::shared_ptr<WireOperation> operation) {
  throw_if_failed();
  const Ticket ticket = ++last_ticket_;
  note_start(*operation);
  tickets_.emplace(ticket, operation);
  {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(operation));
    ++starts_;
  }
  // Post at once if the wire is free; otherwise the thread that holds the lock will.
  {
    const std::unique_lock lock(wire_->lock(), std::try_to_lock);
    if (lock.owns_lock()) drive();
  }
  wake_.notify_one();
  return ticket;
}

void WireEngine::note_start(const WireOperation& operation) {
  if (is_call(operation))
    FlightRecorder::instance().note(FlightEvent::kCall, {.round = ++calls_}, operation.what());
  else
    note_flight(FlightEvent::kStart, operation.label(), operation.partners());
}

void WireEngine::note_through(const WireOperation& operation) {
  if (is_call(operation))
    // There is one call at a time.
    FlightRecorder::instance().note(FlightEvent::kCalled, {.round = ++calls_through_},
                                    operation.what());
  else
    note_flight(FlightEvent::kArrived, operation.label());
}

bool WireEngine::done(Ticket ticket) {
  const auto it = tickets_.find(ticket);
  require(it != tickets_.end(), "transport", "ticket {} is not under way", ticket);
  throw_if_failed();
  if (it->second->finished()) return true;
  const std::unique_lock lock(wire_->lock(), std::try_to_lock);
  if (lock.owns_lock()) drive();
  return it->second->finished();
}

void WireEngine::wait(Ticket ticket) {
  throw_if_failed();
  const auto it = tickets_.find(ticket);
  require(it != tickets_.end(), "transport", "ticket {} is not under way", ticket);
  const std::shared_ptr<WireOperation> operation = it->second;
  const auto limit = Clock::now() + Clock::seconds(timeout_);
  if (!wait_until(*operation, limit, operation->flow())) give_up(*operation);
  tickets_.erase(it);
}

bool WireEngine::wait_until(const WireOperation& operation, Clock::time_point limit, Flow* flow) {
  if (failed_) throw_if_failed();
  if (operation.finished()) return true;
  {
    const std::scoped_lock lock(mutex_);
    caller_drives_ = true;
  }
  struct HandBack {
    WireEngine& engine;
    ~HandBack() {
      const std::scoped_lock lock(engine.mutex_);
      engine.caller_drives_ = false;
      if (engine.tickets_.size() > 1) engine.wake_.notify_one();  // there is more under way
    }
  } hand_back{*this};

  const bool noted = !is_call(operation);
  if (noted) note_flight(FlightEvent::kWait, operation.label(), operation.partners());
  const auto begin = Clock::now();
  auto moved_at = begin;
  auto next_question = moved_at + kAskAfter;
  const auto waited = [&] { return Clock::seconds_since(begin); };
  auto sleep = kCallerSleep;
  while (true) {
    bool moved = false;
    {
      const std::scoped_lock lock(wire_->lock());
      moved = drive();
      if (!failed_ && Clock::now() >= next_question) {
        for (const int rank : operation.partners()) wire_->ask(rank);
        next_question += kAskAfter;
        warn_of_late_ranks(operation, waited());
      }
    }
    if (failed_) throw_if_failed();
    if (operation.finished()) {
      if (noted) note_flight(FlightEvent::kWaited, operation.label());
      late_.came(waited());
      return true;
    }
    check_lost_ranks();
    if (flow) flow->look();
    const auto now = Clock::now();
    if (now >= limit) return false;
    if (moved) {
      moved_at = now;
      sleep = kCallerSleep;
    } else if (now - moved_at < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(sleep * 2, kCallerSleepMost);
    }
  }
}

void WireEngine::give_up(const WireOperation& operation) {
  std::vector<AwaitedRank> awaited;
  {
    const std::scoped_lock lock(wire_->lock());
    const std::vector<int> missing = operation.missing();
    for (const int rank : operation.partners()) {
      awaited.push_back(wire_->known_of(rank));
      awaited.back().missing = std::binary_search(missing.begin(), missing.end(), rank);
    }
  }
  {
    const std::scoped_lock lock(mutex_);
    failure_ = "an earlier wait passed its limit";
  }
  lost_ = true;
  fail_wait(wire_->rank(), with_copies(operation.what(), operation.flow()), operation.label(),
            timeout_, std::move(awaited));
}

void WireEngine::warn_of_late_ranks(const WireOperation& operation, double waited) {
  if (operation.finished()) return;
  for (const int rank : operation.missing()) {
    if (late_.due(rank, waited))
      late_.warn(wire_->known_of(rank), waited, with_copies(operation.what(), operation.flow()),
                 operation.label());
  }
}

void WireEngine::throw_if_failed() {
  check_lost_ranks();
  if (!failed_ && !lost_) return;
  const std::scoped_lock lock(mutex_);
  fail(ExitCode::kLost, "transport", {.rank = wire_->rank()}, "rank {}: {}", wire_->rank(),
       failure_);
}

bool WireEngine::drive() {
  try {
    {
      const std::scoped_lock lock(mutex_);
      for (auto& operation : queue_) {
        if (operation->label().step >= 0) wire_->note_started(operation->label());
        active_.push_back(std::move(operation));
      }
      queue_.clear();
    }
    bool moved = wire_->poll();
    for (const auto& operation : active_) moved |= operation->advance();
    if (moved) {
      std::erase_if(active_, [this](const auto& operation) {
        if (operation->finished()) note_through(*operation);
        return operation->finished();
      });
    }
    return moved;
  } catch (const std::exception& error) {
    const std::scoped_lock lock(mutex_);
    failure_ = error.what();
    failed_ = true;
    return false;
  }
}

void WireEngine::run() {
  std::unique_lock lock(mutex_);
  auto sleep = kThreadSleep;
  while (!stop_) {
    if (caller_drives_) {
      wake_.wait_for(lock, kIdleLook);
      sleep = kThreadSleep;
      continue;
    }
    const std::uint64_t seen = starts_;
    lock.unlock();
    bool moved = false, idle = false;
    {
      const std::unique_lock wire(wire_->lock(), std::try_to_lock);
      if (wire.owns_lock() && !failed_) moved = drive();
      if (wire.owns_lock()) idle = failed_ || active_.empty();
    }
    lock.lock();
    if (stop_) break;
    if (moved) {
      sleep = kThreadSleep;
    } else if (idle && starts_ == seen) {
      wake_.wait_for(lock, kIdleLook);
      sleep = kThreadSleep;
      // The caller has posted what it started; it may be about to wait, and drives better alone.
      if (!stop_ && starts_ != seen) wake_.wait_for(lock, sleep);
    } else {
      wake_.wait_for(lock, sleep);
      sleep = std::min(sleep * 2, kThreadSleepMost);
    }
  }
}

}  // namespace starling::detail
