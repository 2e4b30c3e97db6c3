#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <unordered_map>

#include "comm/engine/operation.h"
#include "comm/flight.h"
#include "comm/other_ranks.h"
#include "comm/transports/checks.h"
#include "core/error.h"
#include "core/log.h"
#include "core/running_clock.h"

namespace starling::detail {
namespace {

using std::chrono::microseconds;

// Time without movement, before a waiting caller sleeps.
constexpr auto kSpin = microseconds(100);
constexpr auto kCallerSleep = microseconds(20);  // first sleep of a waiting caller, growing to
constexpr auto kCallerSleepMost = microseconds(100);
// Sleeps of the thread while the caller computes. Each poll interrupts the computation if all cores
// compute (four hosts on two cores, with computation as long as the exchange: 4 % of the step
// between 50 and 200 µs). It made no network that was tried slower.
constexpr auto kThreadSleep = microseconds(200);
constexpr auto kThreadSleepMost = microseconds(400);
// With nothing under way, for other ranks' questions. Who fetches a state asks again at once, so
// that sleeps grow to this one.
constexpr auto kIdleLook = microseconds(200'000);
constexpr auto kQuestionAfter = std::chrono::milliseconds(500);
constexpr double kLeastLateSeconds = 1.5;  // a rank is not called late before it could answer

/// Operations whose memory the library may still touch after a lost rank: leaked on purpose.
std::vector<std::shared_ptr<WireOperation>>& graveyard() {
  static auto* operations = new std::vector<std::shared_ptr<WireOperation>>();
  return *operations;
}

/// A collective call of the control plane; all else belongs to a lane of exchanges.
bool is_call(const WireOperation& operation) {
  return operation.label().step < 0 && operation.label().bucket < 0;
}

/// Makes progress on operations. While the caller computes, a communication thread polls them; it
/// sleeps between polls so as not to take the core from the computation. While the caller waits,
/// the caller polls. The wire is used under its lock.
class WireEngine {
 public:
  WireEngine(std::unique_ptr<Wire> wire, double timeout_seconds);
  /// Completes operations in flight, unless an error is being thrown or a rank was lost.
  ~WireEngine();
  WireEngine(const WireEngine&) = delete;
  WireEngine& operator=(const WireEngine&) = delete;

  Wire& wire() const { return *wire_; }
  Ticket start(std::shared_ptr<WireOperation> operation);
  bool done(Ticket ticket);
  void wait(Ticket ticket);
  /// Starts an operation and waits for it.
  void complete(const std::shared_ptr<WireOperation>& operation) { wait(start(operation)); }
  void ask(int rank) {
    const std::scoped_lock lock(wire_->lock());
    wire_->ask(rank);
  }
  /// Throws Error(kLost) if a rank was lost, the wire has failed, or a wait has timed out.
  void throw_if_failed();

 private:
  using Clock = RunningClock;
  void run();
  /// Polls all operations once, under the wire's lock. Returns whether any made progress.
  bool drive();
  void note_start(const WireOperation& operation);
  void note_through(const WireOperation& operation);
  /// Calls flow->look() while waiting, unless it is null.
  bool wait_until(const WireOperation& operation, Clock::time_point limit, Flow* flow);
  [[noreturn]] void give_up(const WireOperation& operation);
  void warn_of_late_ranks(const WireOperation& operation, double waited);

  double timeout_;
  std::unique_ptr<Wire> wire_;
  std::vector<std::shared_ptr<WireOperation>> active_;  ///< guarded by Wire::lock()
  std::unordered_map<Ticket, std::shared_ptr<WireOperation>> tickets_;
  Ticket last_ticket_ = 0;
  std::int64_t calls_ = 0;  ///< of the control plane so far, equal on all ranks
  /// The completed ones among them; guarded by Wire::lock()
  std::int64_t calls_through_ = 0;
  LateRanks late_;

  std::mutex mutex_;  ///< guards the following
  std::condition_variable wake_;
  std::vector<std::shared_ptr<WireOperation>> queue_;
  std::uint64_t starts_ = 0;  ///< number of started operations, so that none is missed in a sleep
  bool stop_ = false;
  bool caller_drives_ = false;
  std::string failure_;
  std::atomic<bool> failed_{false};  ///< the wire itself failed; there is no more progress
  /// A wait timed out: all waits fail, though operations may still complete
  std::atomic<bool> lost_{false};
  int exceptions_at_start_;
  std::thread thread_;
};

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
  const auto it = find_ticket(tickets_, ticket);
  throw_if_failed();
  if (it->second->finished()) return true;
  const std::unique_lock lock(wire_->lock(), std::try_to_lock);
  if (lock.owns_lock()) drive();
  return it->second->finished();
}

void WireEngine::wait(Ticket ticket) {
  throw_if_failed();
  const auto it = find_ticket(tickets_, ticket);
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
      if (engine.tickets_.size() > 1)
        engine.wake_.notify_one();  // other operations are still in flight
    }
  } hand_back{*this};

  const bool noted = !is_call(operation);
  if (noted) note_flight(FlightEvent::kWait, operation.label(), operation.partners());
  const auto begin = Clock::now();
  auto moved_at = begin;
  auto next_question = moved_at + kQuestionAfter;
  const auto waited = [&] { return Clock::seconds_since(begin); };
  auto sleep = kCallerSleep;
  while (true) {
    bool moved = false;
    {
      const std::scoped_lock lock(wire_->lock());
      moved = drive();
      if (!failed_ && Clock::now() >= next_question) {
        for (const int rank : operation.partners()) wire_->ask(rank);
        next_question += kQuestionAfter;
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
      awaited.push_back(wire_->status_of(rank));
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
      late_.warn(wire_->status_of(rank), waited, with_copies(operation.what(), operation.flow()),
                 operation.label());
  }
}

void WireEngine::throw_if_failed() {
  check_lost_ranks();
  if (!failed_ && !lost_) return;
  const std::scoped_lock lock(mutex_);
  fail(ExitCode::kLost, "transport", {.rank = wire_->rank()}, "{}", failure_);
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
    } else {
      const bool nothing = idle && starts_ == seen;
      const auto most = nothing ? kIdleLook : kThreadSleepMost;
      wake_.wait_for(lock, std::min(sleep, most));
      sleep = std::min(sleep * 2, most);
      if (!nothing || stop_ || starts_ == seen) continue;
      // The caller has posted what it started; it may be about to wait, and drives better alone.
      wake_.wait_for(lock, sleep = kThreadSleep);
    }
  }
}

class ControlPlane final : public World {
 public:
  explicit ControlPlane(WireEngine& engine) : engine_(engine) {}
  int rank() const override { return wire().rank(); }
  int size() const override { return wire().size(); }
  int local_rank() const override { return wire().local_rank(); }
  int local_size() const override { return wire().local_size(); }

  void barrier() override { call(Wire::Call::kBarrier, "a barrier", {}, {}, 0); }
  void broadcast(void* data, std::size_t bytes, int root) override {
    constexpr std::size_t kPiece = 64u << 20;
    auto* at = static_cast<std::byte*>(data);
    for (std::size_t first = 0; first < bytes; first += kPiece) {
      const std::size_t count = std::min(kPiece, bytes - first);
      const auto operation =
          call(Wire::Call::kBroadcast, fmt::format("a broadcast from rank {}", root),
               {at + first, at + first + count}, {}, root);
      std::memcpy(at + first, operation->bytes().data(), count);
    }
  }
  std::vector<std::string> all_gather(const std::string& mine) override {
    const std::int64_t length = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> lengths(ranks());
    gather("an exchange of lengths", &length, lengths.data(),
           std::vector<int>(ranks(), sizeof length));
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    require(total < std::int64_t{1} << 31, "transport", "{} bytes are too many for all_gather",
            total);
    std::string all(static_cast<std::size_t>(total), '\0');
    gather("an exchange of texts", mine.data(), all.data(),
           std::vector<int>(lengths.begin(), lengths.end()));
    std::vector<std::string> result;
    std::size_t at = 0;
    for (const std::int64_t count : lengths) {
      result.push_back(all.substr(at, static_cast<std::size_t>(count)));
      at += static_cast<std::size_t>(count);
    }
    return result;
  }
  void sum(double* values, std::size_t count) override {
    reduce("a sum of numbers", values, count, [](double a, double b) { return a + b; });
  }
  void max(double* values, std::size_t count) override {
    reduce("a maximum of numbers", values, count, [](double a, double b) { return a < b ? b : a; });
  }

 private:
  std::shared_ptr<WireCall> call(Wire::Call kind, std::string what, std::vector<std::byte> mine,
                                 std::vector<int> counts, int root) {
    auto operation =
        wire().make_call(kind, std::move(what), std::move(mine), std::move(counts), root);
    engine_.complete(operation);
    return operation;
  }

  /// Gathers counts[j] bytes of rank j, one after the other, into `all`.
  void gather(const char* what, const void* mine, void* all, std::vector<int> counts) {
    const auto* first = static_cast<const std::byte*>(mine);
    std::vector<std::byte> own(first, first + counts[static_cast<std::size_t>(rank())]);
    const auto operation = call(Wire::Call::kGather, what, std::move(own), std::move(counts), 0);
    if (!operation->bytes().empty())
      std::memcpy(all, operation->bytes().data(), operation->bytes().size());
  }

  /// Gathers and folds in rank order, so that all ranks get the same bits.
  template <class Fold>
  void reduce(const char* what, double* values, std::size_t count, Fold fold) {
    constexpr std::size_t kPiece = 4096;
    std::vector<double> all;
    for (std::size_t first = 0; first < count; first += kPiece) {
      const std::size_t n = std::min(kPiece, count - first);
      all.resize(n * ranks());
      gather(what, values + first, all.data(),
             std::vector<int>(ranks(), static_cast<int>(n * sizeof(double))));
      for (std::size_t i = 0; i < n; ++i) {
        double total = all[i];
        for (std::size_t j = 1; j < ranks(); ++j) total = fold(total, all[j * n + i]);
        values[first + i] = total;
      }
    }
  }

  Wire& wire() const { return engine_.wire(); }
  std::size_t ranks() const { return static_cast<std::size_t>(wire().size()); }

  WireEngine& engine_;
};

class WireTransport final : public Transport {
 public:
  WireTransport(std::unique_ptr<Wire> wire, double timeout_seconds)
      : Transport(plane_),
        engine_(std::move(wire), timeout_seconds),
        plane_(engine_),
        everyone_{.kind = Exchange::Kind::kGroupSum,
                  .group = std::vector<int>(static_cast<std::size_t>(engine_.wire().size()))} {
    std::iota(everyone_.group.begin(), everyone_.group.end(), 0);
  }

  std::string name() const override { return engine_.wire().name(); }

  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    check_exchange(rank(), size(), exchange, send, receive);
    if (exchange.kind == Exchange::Kind::kNeighbours) {
      return engine_.start(make_neighbour_operation(engine_.wire(), exchange, send, receive, label,
                                                    std::move(flow)));
    }
    return engine_.start(make_group_operation(engine_.wire(), exchange, send, receive[0],
                                              describe(exchange, label), label, std::move(flow)));
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    check_sum(in, out);
    return engine_.start(make_group_operation(engine_.wire(), everyone_, in, out,
                                              describe_sum(label), label, std::move(flow)));
  }
  bool done(Ticket ticket) override { return engine_.done(ticket); }
  void wait(Ticket ticket) override { engine_.wait(ticket); }
  void check() override { engine_.throw_if_failed(); }
  void ask(int rank) override { engine_.ask(rank); }

 private:
  WireEngine engine_;
  ControlPlane plane_;
  Exchange everyone_;  ///< the sum over all ranks
};

}  // namespace

std::unique_ptr<Transport> make_wire_transport(std::unique_ptr<Wire> wire, double timeout_seconds) {
  return std::make_unique<WireTransport>(std::move(wire), timeout_seconds);
}

}  // namespace starling::detail
