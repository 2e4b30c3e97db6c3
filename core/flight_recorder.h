#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace starling {

/// What happened; event_name() has the words of the files.
enum class FlightEvent : std::uint8_t {
  kStep,       ///< a step begins
  kReady,      ///< a bucket's last gradient is there
  kStart,      ///< an exchange is issued, with these ranks
  kArrived,    ///< it is through
  kWait,       ///< this rank waits for these ranks, as it has nothing else to do
  kReaders,    ///< the same, for ranks that still read where it will write
  kWaited,     ///< and goes on
  kMixed,      ///< what came is at hand for the update
  kPublished,  ///< the bucket's new parameters are final
  /// A collective call of the control plane begins; `round` counts them, equal on all ranks
  kCall,
  kCalled,      ///< and ends
  kLoad,        ///< the step waits for a batch that is still being read
  kLoaded,      ///< and has it
  kCheckpoint,  ///< a checkpoint's copy begins
  kSaved,       ///< and ends; the rest is written beside training
  kTest,        ///< a test begins
  kTested,      ///< and ends
  kLate,        ///< one rank keeps this one waiting for long
  kFound,       ///< what the kernel says of the rank in `round`: it is stopped, it waits for a disk
  kTimeout,     ///< a wait passed its limit; the ranks are those that were missing
  kLost,        ///< one rank's process has ended, or its host is silent
};
inline constexpr FlightEvent kLastFlightEvent = FlightEvent::kLost;
std::string_view event_name(FlightEvent event);

/// Where in the run something happened; -1 where it does not apply. `step` counts the updates
/// before it, as in errors of exchanges.
struct FlightPlace {
  std::int64_t step = -1;
  int bucket = -1;
  std::int64_t round = -1;
  int lane = 0;
};

/// The last events of this process, always in memory, written to a file when something goes wrong:
/// docs/outputs.md has its format. note() takes some 50 ns and no lock; write() may be called from
/// a signal handler.
class FlightRecorder {
 public:
  static constexpr std::size_t kKept = 1000;
  /// Ranks that an event can name; of more it keeps these and their number
  static constexpr std::size_t kPeers = 6;
  static constexpr std::size_t kText = 24;  ///< bytes of an event's text

  /// Why the file is written. Of kCrash, kError and kOther the first stays: what follows is its
  /// consequence.
  enum class Reason : std::uint8_t {
    kCrash,  ///< a signal that ends the process
    kError,  ///< an error of this rank, or a loss that it noticed
    kOther,  ///< another rank ended the job
    kAsked,  ///< SIGQUIT; the process goes on
    kEnd,    ///< the end of a run that asked for it
  };

  /// The process's own. One per rank; where ranks are threads, in tests, they share it.
  static FlightRecorder& instance();

  /// Opens the recorder: from now on write() makes FOLDER/rank-R.jsonl. The folder itself is made
  /// when there is something to write. `start`: what tells this start of the job from others, the
  /// same on all ranks: microseconds of the wall clock.
  void open(int rank, int ranks, std::string_view host, const std::string& folder,
            std::int64_t start = 0);
  /// Events are counted but not kept, and nothing is ever written.
  void switch_off() { on_.store(false, std::memory_order_relaxed); }
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void note(FlightEvent event, const FlightPlace& place = {}, std::span<const int> peers = {});
  void note(FlightEvent event, const FlightPlace& place, std::string_view text);
  /// The step that began last; -1: none.
  std::int64_t step() const { return step_.load(std::memory_order_relaxed); }
  int rank() const { return rank_; }
  /// Tells the rank before open(), for crashes.
  void set_rank(int rank) { rank_ = rank; }

  /// Writes the file; false where there is nothing to write to, or nothing more. Safe in a signal
  /// handler.
  bool write(Reason reason, int exit_code, std::string_view text) noexcept;
  /// The file that write() writes; empty before open().
  std::string_view file() const { return file_.data(); }

 private:
  static constexpr std::size_t kSlots = 1024;
  static constexpr std::size_t kPath = 4096;
  /// Words, so that a slot that is read while it is written is only recognised, not undefined:
  /// number + 1 (0 while it is written), time, step, round, bucket | event | lane | number of
  /// peers, then peers or a text.
  struct alignas(64) Slot {
    std::array<std::atomic<std::uint64_t>, 8> words{};
  };
  using Rest = std::array<std::uint64_t, 3>;
  static_assert(sizeof(Rest) == kPeers * sizeof(std::int32_t) && sizeof(Rest) == kText);

  void put(FlightEvent event, const FlightPlace& place, std::uint16_t peers, const Rest& rest);
  void write_file(int descriptor, Reason reason, int exit_code, std::string_view text) const;

  std::array<Slot, kSlots> slots_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::int64_t> step_{-1};
  std::atomic<bool> on_{true}, open_{false}, ended_{false};
  int rank_ = 0, ranks_ = 1;
  std::int64_t start_ = 0;
  std::array<char, kPath> folder_{}, file_{}, temporary_{};
  std::array<char, 256> host_{};
};

/// Two events, at construction and destruction.
class FlightSpan {
 public:
  FlightSpan(FlightEvent begin, FlightEvent end, const FlightPlace& place)
      : end_(end), place_(place) {
    FlightRecorder::instance().note(begin, place);
  }
  ~FlightSpan() { FlightRecorder::instance().note(end_, place_); }
  FlightSpan(const FlightSpan&) = delete;
  FlightSpan& operator=(const FlightSpan&) = delete;

 private:
  FlightEvent end_;
  FlightPlace place_;
};

}  // namespace starling
