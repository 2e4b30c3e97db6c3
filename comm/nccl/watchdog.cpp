#include "comm/nccl/watchdog.h"

#include <algorithm>
#include <future>
#include <set>
#include <utility>

#include "comm/transports/checks.h"
#include "core/host.h"

namespace starling {
namespace {

constexpr double kAbortSeconds = 10.0;
constexpr double kAbortSecondsWithGraphs = 0.3;

}  // namespace

std::string NcclWork::text() const {
  return (sum ? describe_sum(label) : describe(exchange, label)) +
         (captured ? ", captured into a graph" : "");
}

std::string NcclGraph::text(std::int64_t launched) const {
  std::set<int> ranks, buckets;
  bool sum = false, groups = false;
  for (const NcclWork& work : works) {
    buckets.insert(work.label.bucket);
    sum = sum || work.sum;
    groups = groups || !work.exchange.group.empty();
    for (const auto* some :
         {&work.exchange.send_to, &work.exchange.receive_from, &work.exchange.group})
      ranks.insert(some->begin(), some->end());
  }
  const std::int64_t round = works.front().label.round + launched - step;
  std::string text = fmt::format("the exchanges of step {} (replayed as a graph), ", launched);
  text += buckets.size() == 1
              ? fmt::format("bucket {}, ", *buckets.begin())
              : fmt::format("buckets {} to {}, ", *buckets.begin(), *buckets.rbegin());
  if (sum) return text + "over all ranks";
  text += fmt::format("round {}", round);
  if (!ranks.empty())
    text += (groups ? " among " : " with ") + rank_list({ranks.begin(), ranks.end()});
  return text;
}

NcclWatchdog::NcclWatchdog(std::shared_ptr<Nccl> nccl, Backend& backend, int rank,
                           double timeout_seconds, double watch_seconds)
    : nccl_(std::move(nccl)),
      backend_(backend),
      rank_(rank),
      timeout_seconds_(timeout_seconds),
      watch_seconds_(watch_seconds) {
  thread_ = std::thread([this] { run(); });
}

NcclWatchdog::~NcclWatchdog() {
  stop();
  abort_all();
}

void NcclWatchdog::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NcclWatchdog::check_locked() const {
  if (lost_) throw Error(*lost_);
}

void NcclWatchdog::check() {
  const std::lock_guard lock(mutex_);
  check_locked();
}

void NcclWatchdog::call(const std::function<std::string()>& what,
                        const std::function<void()>& calls) {
  const std::lock_guard lock(mutex_);
  check_locked();
  try {
    calls();
  } catch (const Error& error) {
    lose(fmt::format("rank {} on host {}: NCCL refused a call for {}: {}", rank_, host_name(),
                     what(), message_of(error)));
    check_locked();
  }
}

void NcclWatchdog::during(const std::function<std::string()>& what,
                          const std::function<void()>& work, const std::string& remedy) {
  const auto set = [this](const std::function<std::string()>* value, const std::string& then) {
    const std::lock_guard lock(mutex_);
    during_ = value;
    remedy_ = then;
  };
  set(&what, remedy);
  try {
    work();
  } catch (...) {
    set(nullptr, {});
    throw;
  }
  set(nullptr, {});
}

void NcclWatchdog::settle(NcclComm comm, const std::function<std::string()>& what) {
  const auto begin = Clock::now();
  for (int looks = 0;; ++looks) {
    {
      const std::lock_guard lock(mutex_);
      check_locked();
      const NcclState state = nccl_->state(comm);
      if (state == NcclState::kReady) return;
      if (state == NcclState::kFailed) {
        lose(fmt::format("rank {} on host {}: NCCL failed in {}{}", rank_, host_name(), what(),
                         last_words(comm)));
        check_locked();
      }
      if (Clock::seconds_since(begin) > timeout_seconds_) {
        lose(fmt::format(
            "rank {} waited {:g} s (sync.timeout_s) on host {} for NCCL to connect {}{}", rank_,
            timeout_seconds_, host_name(), what(), last_words(comm)));
        check_locked();
      }
    }
    // Most calls complete within microseconds; setting up connections takes longer.
    if (looks < 200) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void NcclWatchdog::add(NcclComm comm) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(comm);
}

void NcclWatchdog::give_up(const Error& reason) {
  const std::lock_guard lock(mutex_);
  if (!lost_) lose(reason);
}

void NcclWatchdog::follow(std::function<std::string()> what, Event ready, Event through) {
  const std::lock_guard lock(mutex_);
  followed_.push_back({std::move(what), ready, through, Clock::now(), {}});
}

void NcclWatchdog::expect_graphs() {
  const std::lock_guard lock(mutex_);
  graphs_ = true;
}

void NcclWatchdog::run() {
  nccl_->use_device();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, std::chrono::duration<double>(watch_seconds_));
    if (!stopping_ && !lost_) look();
  }
}

void NcclWatchdog::remove_completed() {
  while (!followed_.empty() && backend_.done(followed_.front().through)) followed_.pop_front();
}

void NcclWatchdog::look() {
  try {
    for (NcclComm comm : comms_) {
      if (nccl_->state(comm) != NcclState::kFailed) continue;
      remove_completed();
      const std::string during = !followed_.empty() ? "in or after " + followed_.front().what()
                                 : during_          ? "in " + (*during_)()
                                                    : "between exchanges";
      return lose(fmt::format("rank {} on host {}: NCCL reported an error {}{}", rank_, host_name(),
                              during, last_words(comm)));
    }
    remove_completed();
    if (followed_.empty()) return;
    Followed& first = followed_.front();
    const auto now = Clock::now();
    if (!first.started && backend_.done(first.ready)) first.started = now;
    if (!first.started || Clock::seconds_since(*first.started) <= timeout_seconds_) return;
    lose(fmt::format(
        "rank {} waited {:g} s (sync.timeout_s) on host {} for {}, {:.1f} s after its issue{}; "
        "NCCL does not report which rank is missing",
        rank_, timeout_seconds_, host_name(), first.what(), Clock::seconds_since(first.issued),
        last_words(comms_.front())));
  } catch (const std::exception& error) {  // the device failed
    lose(fmt::format("rank {} on host {}: {}", rank_, host_name(), message_of(error)));
  }
}

std::string NcclWatchdog::last_words(NcclComm comm) {
  const std::string words = nccl_->error(comm);
  return words.empty() ? std::string() : "; NCCL: " + words;
}

void NcclWatchdog::lose(const Error& error) noexcept {
  lost_ = error;
  abort_all();
  followed_.clear();
}

void NcclWatchdog::abort_all() noexcept {
  if (comms_.empty()) return;
  // Group communicators share the world's abort flag, which aborts all of them, in any order.
  const auto abort = [nccl = nccl_, comms = std::exchange(comms_, {})] {
    for (auto comm = comms.rbegin(); comm != comms.rend(); ++comm) nccl->abort(*comm);
  };
  try {
    // An abort may hang. It is not waited for, since the process is about to exit.
    const auto ended = std::make_shared<std::promise<void>>();
    std::future<void> end = ended->get_future();
    std::thread([abort, nccl = nccl_, ended] {
      nccl->use_device();
      abort();
      ended->set_value();
    }).detach();
    // NCCL first sets a flag, which ends operations on all communicators, then waits until no graph
    // refers to the communicator.
    end.wait_for(std::chrono::duration<double>(graphs_ ? kAbortSecondsWithGraphs : kAbortSeconds));
  } catch (...) {  // no thread available
    abort();
  }
}

bool NcclWatchdog::drain() noexcept {
  try {
    const auto begin = Clock::now();
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (lost_) return false;
        remove_completed();
        if (followed_.empty()) return true;
        // The watchdog's timeout does not apply to an exchange whose data never gets ready.
        if (Clock::seconds_since(begin) > 2.0 * timeout_seconds_) return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  } catch (...) {
    return false;
  }
}

void NcclWatchdog::close() noexcept {
  stop();
  for (auto comm = comms_.rbegin(); comm != comms_.rend(); ++comm) nccl_->destroy(*comm);
  comms_.clear();
}

}  // namespace starling
