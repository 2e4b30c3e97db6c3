#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace starling {

/// Kinds of events; event_name() gives their names in files.
enum class FlightEvent : std::uint8_t {
  kStep,       ///< a step begins
  kReady,      ///< a bucket's last gradient is complete
  kStart,      ///< an exchange with these ranks starts
  kArrived,    ///< it ends
  kWait,       ///< this rank starts waiting for these ranks
  kReaders,    ///< the same, for ranks that read the memory it will write
  kWaited,     ///< the wait ends
  kMixed,      ///< received data are ready for the update
  kPublished,  ///< the bucket's new parameters are final
  /// A collective call of the control plane begins; `round` counts them, equal on all ranks
  kCall,
  kCalled,      ///< it ends
  kLoad,        ///< the step starts waiting for a batch
  kLoaded,      ///< the wait ends
  kCheckpoint,  ///< copying a checkpoint begins
  kSaved,       ///< it ends; writing continues in the background
  kTest,        ///< a test begins
  kTested,      ///< it ends
  kLate,        ///< a rank has been waited for for a long time
  kFound,       ///< state of the process of the rank in `round`: stopped, waiting for a disk, …
  kTimeout,     ///< a wait timed out; with the ranks that were missing
  kLost,        ///< one rank's process has ended, or its host is silent
};
inline constexpr FlightEvent kLastFlightEvent = FlightEvent::kLost;
std::string_view event_name(FlightEvent event);

/// Where in the run an event happened; -1 if not applicable. `step` is the number of updates before
/// it, as in errors of exchanges.
struct FlightPlace {
  std::int64_t step = -1;
  int bucket = -1;
  std::int64_t round = -1;
  int lane = 0;
};

/// Keeps this process's last events in memory and writes them to a file when something goes wrong
/// (format: docs/outputs.md). note() takes about 50 ns and no lock; write() may be called in a
/// signal handler.
class FlightRecorder {
 public:
  static constexpr std::size_t kKept = 1000;
  /// Ranks stored per event; of more only the first and their number are kept
  static constexpr std::size_t kPeers = 6;
  static constexpr std::size_t kText = 24;  ///< bytes of an event's text

  /// Why the file is written. After kCrash, kError or kOther later ones are ignored, since they are
  /// consequences.
  enum class Reason : std::uint8_t {
    kCrash,  ///< a signal that ends the process
    kError,  ///< an error of this rank, or a loss that it detected
    kOther,  ///< another rank ended the job
    kAsked,  ///< SIGQUIT; the process continues
    kEnd,    ///< the end of a run with "flight_recorder": "end"
  };

  /// One per process; ranks that are threads, in tests, share it.
  static FlightRecorder& instance();

  /// From now on write() writes FOLDER/rank-R.jsonl, and creates the folder if necessary, but not a
  /// folder above it that is there now and gone later. `start` identifies this start of the job,
  /// equal on all ranks: microseconds of the wall clock.
  void open(int rank, int ranks, std::string_view host, const std::string& folder,
            std::int64_t start = 0);
  /// Events are counted but not kept, and nothing is ever written.
  void switch_off() { on_.store(false, std::memory_order_relaxed); }
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void note(FlightEvent event, const FlightPlace& place = {}, std::span<const int> peers = {});
  void note(FlightEvent event, const FlightPlace& place, std::string_view text);
  /// The last step that began; -1: none.
  std::int64_t step() const { return step_.load(std::memory_order_relaxed); }
  int rank() const { return rank_; }
  /// The rank for crash reports before open().
  void set_rank(int rank) { rank_ = rank; }

  /// Writes the file. Returns false before open() and after a final reason. Safe in a signal
  /// handler.
  bool write(Reason reason, int exit_code, std::string_view text) noexcept;
  /// The file that write() writes; empty before open().
  std::string_view file() const { return file_.data(); }

 private:
  static constexpr std::size_t kSlots = 1024;
  static constexpr std::size_t kPath = 4096;
  /// Atomic words, so that reading a slot while it is written is not undefined behaviour and can be
  /// detected: number + 1 (0 while it is written), time, step, round, bucket | event | lane |
  /// number of peers, then peers or a text.
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
  std::size_t there_ = 0;  ///< bytes of the folder's path that existed
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
