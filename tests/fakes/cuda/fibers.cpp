#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/fakes/cuda/shim.h"

namespace starling::cuda::shim {
namespace {

constexpr unsigned kMostThreads = 1024;
constexpr std::size_t kMostShared = 227 << 10;  // of a block on an H100; an A100 has 163 KiB
constexpr unsigned kLanes = 32;

enum class State : std::uint8_t { kRunning, kReady, kInBarrier, kInWarpCall, kDone };

struct Thread {
  uint3 index{};
  State state = State::kReady;
  Context* fiber = nullptr;  ///< while it waits
  std::source_location barrier;
  std::uint64_t result = 0;  ///< of its warp call
  struct Copy {
    void* to;
    const void* from;
    int bytes;
    bool inside;
  };
  std::vector<Copy> copies;  ///< that it has not waited for
};

/// A call that the threads of `mask` are making.
struct Meeting {
  WarpCall call;
  unsigned mask = 0, arrived = 0;
  std::array<std::uint64_t, kLanes> values{};
  std::array<int, kLanes> sources{};
};

/// Runs one launch at a time: shared memory is static.
class Scheduler {
 public:
  void run(Dim3 grid, Dim3 block, std::size_t shared_bytes, void (*call)(const void*),
           const void* function);
  void set_order(Order order, std::uint64_t seed) {
    const std::lock_guard lock(mutex_);
    order_ = order;
    seed_ = seed;
    draws_ = 0;
  }

  std::uint64_t warp_call(WarpCall call, unsigned mask, std::uint64_t value, int source);
  void barrier(const std::source_location& where);
  int lane() const { return static_cast<int>(current_ % kLanes); }
  Thread& current() { return threads_[current_]; }
  unsigned char* shared() { return shared_.data; }

 private:
  void run_block();
  void arrange(std::vector<unsigned>& order);
  void release_barrier();
  void start_threads();
  void run_thread(unsigned thread);
  void enter(unsigned thread);
  void leave();
  Context* next();
  void complete(unsigned warp);
  Context* free_fiber();
  [[noreturn]] void abandon();

  std::mutex mutex_;
  Order order_ = Order::kForward;
  std::uint64_t seed_ = 0, draws_ = 0;

  void (*call_)(const void*) = nullptr;
  const void* function_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<unsigned> sequence_;  ///< in which threads run now
  unsigned started_ = 0, done_ = 0, current_ = 0;
  std::size_t looked_at_ = 0;  ///< of the sequence, in this round
  struct Warp {
    std::vector<Meeting> meetings;
    unsigned gone = 0;  ///< lanes that have returned, or lie beyond the block's end
  };
  std::vector<Warp> warps_;
  std::exception_ptr error_;

  Context main_;
  Context* running_ = nullptr;
  std::vector<std::unique_ptr<Context>> fibers_;
  std::vector<Context*> free_;
  struct alignas(128) {
    unsigned char data[kMostShared];
  } shared_;
};

Scheduler& scheduler() {
  static Scheduler one;
  return one;
}

void Scheduler::run(Dim3 grid, Dim3 block, std::size_t shared_bytes, void (*call)(const void*),
                    const void* function) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t size = std::uint64_t{block.x} * block.y * block.z;
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  require(size > 0 && size <= kMostThreads && block.z <= 64, "shim",
          "a block of {} x {} x {} threads; 1 to {} can be started", block.x, block.y, block.z,
          kMostThreads);
  require(blocks > 0 && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535, "shim",
          "a grid of {} x {} x {} blocks is not possible", grid.x, grid.y, grid.z);
  require(shared_bytes <= kMostShared, "shim", "{} bytes of shared memory for a block; it has {}",
          shared_bytes, kMostShared);
  call_ = call;
  function_ = function;
  block_size = {block.x, block.y, block.z};
  grid_size = {grid.x, grid.y, grid.z};
  threads_.resize(size);
  sequence_.resize(size);
  warps_.resize((size + kLanes - 1) / kLanes);
  std::vector<unsigned> numbers(blocks);
  arrange(numbers);
  for (const unsigned number : numbers) {
    block_index = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
    // NaN: what nobody wrote must not count
    std::fill_n(shared_.data, shared_bytes, static_cast<unsigned char>(0xff));
    run_block();
  }
}

void Scheduler::arrange(std::vector<unsigned>& order) {
  std::iota(order.begin(), order.end(), 0u);
  if (order_ == Order::kBackward) std::reverse(order.begin(), order.end());
  if (order_ != Order::kShuffled) return;
  ++draws_;
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[philox(seed_, i, draws_).v[0] % i]);
}

void Scheduler::run_block() {
  const unsigned size = static_cast<unsigned>(threads_.size());
  for (unsigned i = 0; i < size; ++i) {
    threads_[i].index = {i % block_size.x, i / block_size.x % block_size.y,
                         i / block_size.x / block_size.y};
    threads_[i].state = State::kReady;
    threads_[i].copies.clear();
  }
  for (Warp& warp : warps_) warp.gone = 0;
  if (size % kLanes != 0) warps_.back().gone = ~0u << size % kLanes;
  started_ = done_ = 0;
  error_ = nullptr;
  arrange(sequence_);
  looked_at_ = size;
  while (done_ < size && !error_) {
    Context* fiber = next();
    if (!fiber) {  // the end of a round: all that could run have
      looked_at_ = 0;
      fiber = next();
    }
    if (fiber) {
      running_ = fiber;
      Context::switch_to(main_, *fiber);
    } else {
      release_barrier();
    }
  }
  if (error_) abandon();
}

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::string_view(a.file_name()) == b.file_name());
}

/// All threads wait: they go on where all are in one barrier. Those that returned count as arrived,
/// as on GPUs.
void Scheduler::release_barrier() {
  const Thread* first = nullptr;
  try {
    for (const Thread& thread : threads_) {
      if (thread.state == State::kDone) continue;
      if (thread.state == State::kInWarpCall) {
        fail(ExitCode::kInternal, "shim",
             "block {},{},{}: thread {},{},{} waits in a warp's call whose mask names threads that "
             "never make that call",
             block_index.x, block_index.y, block_index.z, thread.index.x, thread.index.y,
             thread.index.z);
      }
      if (!first) first = &thread;
      if (!same_place(thread.barrier, first->barrier)) {
        fail(ExitCode::kInternal, "shim",
             "block {},{},{}: threads wait in different barriers: {},{},{} in line {} of {}, "
             "{},{},{} in line {}",
             block_index.x, block_index.y, block_index.z, first->index.x, first->index.y,
             first->index.z, first->barrier.line(), first->barrier.file_name(), thread.index.x,
             thread.index.y, thread.index.z, thread.barrier.line());
      }
    }
  } catch (...) {
    error_ = std::current_exception();
    return;
  }
  arrange(sequence_);
  for (Thread& thread : threads_) {
    if (thread.state == State::kInBarrier) thread.state = State::kReady;
  }
}

/// A fiber's whole life: it runs threads that nobody has started. One that has to wait keeps the
/// fiber until it is done.
void Scheduler::start_threads() {
  for (;;) {
    while (started_ < sequence_.size() && !error_) run_thread(sequence_[started_++]);
    free_.push_back(running_);
    leave();
  }
}

/// From now on thread number `thread` is the one that runs.
void Scheduler::enter(unsigned thread) {
  current_ = thread;
  thread_index = threads_[thread].index;
  threads_[thread].state = State::kRunning;
}

void Scheduler::run_thread(unsigned thread) {
  enter(thread);
  try {
    call_(function_);
    threads_[thread].state = State::kDone;
    ++done_;
    warps_[thread / kLanes].gone |= 1u << thread % kLanes;
    complete(thread / kLanes);
  } catch (...) {
    error_ = std::current_exception();
  }
}

/// From a fiber to the next one, or at the end of a round back to the scheduler.
void Scheduler::leave() {
  Context* self = running_;
  running_ = error_ ? nullptr : next();
  Context::switch_to(*self, running_ ? *running_ : main_);
}

/// The fiber that goes on: one for threads that nobody has started, then that of the next thread in
/// this round that is ready. Null: there is none.
Context* Scheduler::next() {
  if (started_ < sequence_.size()) return free_fiber();
  while (looked_at_ < sequence_.size()) {
    const unsigned thread = sequence_[looked_at_++];
    if (threads_[thread].state != State::kReady) continue;
    enter(thread);
    return threads_[thread].fiber;
  }
  return nullptr;
}

Context* Scheduler::free_fiber() {
  if (free_.empty()) {
    fibers_.push_back(std::make_unique<Context>([] { scheduler().start_threads(); }));
    return fibers_.back().get();
  }
  Context* fiber = free_.back();
  free_.pop_back();
  return fiber;
}

/// Fibers that were in the middle of a thread cannot be used again.
void Scheduler::abandon() {
  free_.clear();
  fibers_.clear();
  for (Warp& warp : warps_) warp.meetings.clear();
  const std::exception_ptr error = std::exchange(error_, nullptr);
  std::rethrow_exception(error);
}

void Scheduler::barrier(const std::source_location& where) {
  Thread& self = threads_[current_];
  self.state = State::kInBarrier;
  self.barrier = where;
  self.fiber = running_;
  leave();
}

std::uint64_t Scheduler::warp_call(WarpCall call, unsigned mask, std::uint64_t value, int source) {
  const unsigned lane = current_ % kLanes;
  Thread& self = threads_[current_];
  require((mask >> lane & 1u) != 0, "shim",
          "a thread of lane {} calls with mask {:#x}, which does not name it", lane, mask);
  auto& meetings = warps_[current_ / kLanes].meetings;
  Meeting* meeting = nullptr;
  for (Meeting& other : meetings) {
    if (other.mask == mask && other.call == call) meeting = &other;
    require(meeting == &other || (other.mask & mask) == 0, "shim",
            "lane {} calls with mask {:#x} while threads that it names are in another call, with "
            "mask {:#x}",
            lane, mask, other.mask);
  }
  if (!meeting) {
    meetings.push_back({call, mask});
    meeting = &meetings.back();
  }
  meeting->arrived |= 1u << lane;
  meeting->values[lane] = value;
  meeting->sources[lane] = source;
  self.state = State::kInWarpCall;
  self.fiber = running_;
  complete(current_ / kLanes);
  if (self.state == State::kInWarpCall) leave();  // the last to arrive goes on at once
  self.state = State::kRunning;
  return self.result;
}

/// Ends the calls of a warp that all have arrived at.
void Scheduler::complete(unsigned warp) {
  auto& [meetings, gone] = warps_[warp];
  const std::size_t first = std::size_t{warp} * kLanes;
  for (std::size_t m = 0; m < meetings.size();) {
    const Meeting& meeting = meetings[m];
    if ((meeting.mask & ~gone & ~meeting.arrived) != 0) {
      ++m;
      continue;
    }
    unsigned votes = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if ((meeting.arrived >> lane & 1u) != 0 && meeting.values[lane] != 0) votes |= 1u << lane;
    }
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if ((meeting.arrived >> lane & 1u) == 0) continue;
      Thread& thread = threads_[first + lane];
      if (meeting.call == WarpCall::kShuffle) {
        const auto source = static_cast<unsigned>(meeting.sources[lane]);
        require(source < kLanes && (meeting.arrived >> source & 1u) != 0, "shim",
                "lane {} shuffles from lane {}, which does not take part (mask {:#x})", lane,
                meeting.sources[lane], meeting.mask);
        thread.result = meeting.values[source];
      } else {
        thread.result = votes;
      }
      thread.state = State::kReady;
    }
    meetings.erase(meetings.begin() + static_cast<std::ptrdiff_t>(m));
  }
}

}  // namespace

void set_order(Order order, std::uint64_t seed) { scheduler().set_order(order, seed); }
std::uint64_t warp_call(WarpCall call, unsigned mask, std::uint64_t value, int source) {
  return scheduler().warp_call(call, mask, value, source);
}
void block_barrier(const std::source_location& where) { scheduler().barrier(where); }
int lane() { return scheduler().lane(); }
unsigned char* dynamic_shared_memory() { return scheduler().shared(); }
void copy_async(void* to, const void* from, int bytes, bool inside) {
  const auto beside = [bytes](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % static_cast<unsigned>(bytes) != 0;
  };
  require(!beside(to) && !(inside && beside(from)), "shim",
          "a copy of {} bytes from {} to {}, which must be multiples of {}", bytes, from, to,
          bytes);
  std::memset(to, 0xff, static_cast<std::size_t>(bytes));
  scheduler().current().copies.push_back({to, from, bytes, inside});
}
void finish_copies() {
  auto& copies = scheduler().current().copies;
  for (const auto& copy : copies) {
    const auto bytes = static_cast<std::size_t>(copy.bytes);
    if (copy.inside) {
      std::memcpy(copy.to, copy.from, bytes);
    } else {
      std::memset(copy.to, 0, bytes);
    }
  }
  copies.clear();
}

void run(Dim3 grid, Dim3 block, std::size_t shared_bytes, void (*call)(const void*),
         const void* function) {
  scheduler().run(grid, block, shared_bytes, call, function);
}

namespace {
std::atomic<int> resident{2};
}
void set_resident_blocks(int blocks) { resident = blocks; }
int resident_blocks() { return resident; }

}  // namespace starling::cuda::shim
