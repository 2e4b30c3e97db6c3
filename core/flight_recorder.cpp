#include "core/flight_recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "core/error.h"
#include "core/signal_text.h"

namespace starling {
namespace {

std::int64_t nanoseconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::string_view reason_name(FlightRecorder::Reason reason) {
  switch (reason) {
    case FlightRecorder::Reason::kCrash: return "crash";
    case FlightRecorder::Reason::kError: return "error";
    case FlightRecorder::Reason::kOther: return "other";
    case FlightRecorder::Reason::kAsked: return "asked";
    case FlightRecorder::Reason::kEnd: return "end";
  }
  return "?";
}

/// Makes a folder with those above it, but for the first `there` bytes of its path, by what a
/// signal handler may call.
void make_folder(const char* path, std::size_t there) {
  if (::mkdir(path, 0777) == 0 || errno != ENOENT) return;
  std::array<char, 4096> part{};
  std::copy_n(path, std::min(std::strlen(path), part.size() - 1), part.begin());
  for (std::size_t i = there + 1; part[i] != '\0'; ++i) {
    if (part[i] != '/') continue;
    part[i] = '\0';
    ::mkdir(part.data(), 0777);
    part[i] = '/';
  }
  ::mkdir(part.data(), 0777);
}

template <std::size_t N>
void copy_text(std::array<char, N>& to, std::string_view text) {
  require(text.size() < N, "recorder", "{} bytes are too long for a path: {}", text.size(), text);
  std::copy(text.begin(), text.end(), to.begin());
  to[text.size()] = '\0';
}

}  // namespace

std::string_view event_name(FlightEvent event) {
  switch (event) {
    case FlightEvent::kStep: return "step";
    case FlightEvent::kReady: return "ready";
    case FlightEvent::kStart: return "start";
    case FlightEvent::kArrived: return "arrived";
    case FlightEvent::kWait: return "wait";
    case FlightEvent::kReaders: return "readers";
    case FlightEvent::kWaited: return "waited";
    case FlightEvent::kMixed: return "mixed";
    case FlightEvent::kPublished: return "published";
    case FlightEvent::kCall: return "call";
    case FlightEvent::kCalled: return "called";
    case FlightEvent::kLoad: return "load";
    case FlightEvent::kLoaded: return "loaded";
    case FlightEvent::kCheckpoint: return "checkpoint";
    case FlightEvent::kSaved: return "saved";
    case FlightEvent::kTest: return "test";
    case FlightEvent::kTested: return "tested";
    case FlightEvent::kLate: return "late";
    case FlightEvent::kFound: return "found";
    case FlightEvent::kTimeout: return "timeout";
    case FlightEvent::kLost: return "lost";
  }
  return "?";
}

FlightRecorder& FlightRecorder::instance() {
  // The recorder is never destroyed: threads note events until the process ends
  static auto* recorder = new FlightRecorder;
  return *recorder;
}

void FlightRecorder::open(int rank, int ranks, std::string_view host, const std::string& folder,
                          std::int64_t start) {
  open_ = false;
  start_ = start;
  rank_ = rank;
  ranks_ = ranks;
  copy_text(host_, host.substr(0, host_.size() - 1));
  const std::string absolute = std::filesystem::absolute(folder).lexically_normal().string();
  copy_text(folder_, absolute);
  // Another host may not have the folder. One that is there now, and gone later, was moved.
  std::filesystem::path above = absolute;
  std::error_code error;
  while (above.has_relative_path() && !std::filesystem::exists(above, error))
    above = above.parent_path();
  there_ = above.string().size();
  copy_text(file_, fmt::format("{}/rank-{}.jsonl", absolute, rank));
  copy_text(temporary_, fmt::format("{}/.rank-{}.{}", absolute, rank, ::getpid()));
  ended_ = false;
  open_.store(true, std::memory_order_release);
}

void FlightRecorder::note(FlightEvent event, const FlightPlace& place, std::span<const int> peers) {
  Rest rest{};
  std::array<std::int32_t, kPeers> named{};
  std::copy_n(peers.begin(), std::min(peers.size(), kPeers), named.begin());
  std::memcpy(rest.data(), named.data(), sizeof rest);
  put(event, place, static_cast<std::uint16_t>(std::min<std::size_t>(peers.size(), 0x7fff)), rest);
}

void FlightRecorder::note(FlightEvent event, const FlightPlace& place, std::string_view text) {
  Rest rest{};
  std::memcpy(rest.data(), text.data(), std::min(text.size(), kText));
  put(event, place, 0x8000, rest);
}

void FlightRecorder::put(FlightEvent event, const FlightPlace& place, std::uint16_t peers,
                         const Rest& rest) {
  if (!on()) return;
  if (event == FlightEvent::kStep) step_.store(place.step, std::memory_order_relaxed);
  const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  auto& words = slots_[number % kSlots].words;
  const auto set = [&](std::size_t i, std::uint64_t value) {
    words[i].store(value, std::memory_order_release);
  };
  set(0, 0);
  set(1, static_cast<std::uint64_t>(nanoseconds_of(CLOCK_MONOTONIC)));
  set(2, static_cast<std::uint64_t>(place.step));
  set(3, static_cast<std::uint64_t>(place.round));
  set(4, static_cast<std::uint64_t>(static_cast<std::uint32_t>(place.bucket)) |
             static_cast<std::uint64_t>(event) << 32 |
             static_cast<std::uint64_t>(place.lane & 0xff) << 40 |
             static_cast<std::uint64_t>(peers) << 48);
  for (std::size_t i = 0; i < rest.size(); ++i) set(5 + i, rest[i]);
  set(0, number + 1);
}

bool FlightRecorder::write(Reason reason, int exit_code, std::string_view text) noexcept {
  if (!on() || !open_.load(std::memory_order_acquire)) return false;
  const bool last =
      reason == Reason::kCrash || reason == Reason::kError || reason == Reason::kOther;
  if (last ? ended_.exchange(true) : ended_.load()) return false;
  make_folder(folder_.data(), there_);
  // Write to another file and rename it, so that there is a complete file at any time.
  const int descriptor = ::open(temporary_.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) return false;
  write_file(descriptor, reason, exit_code, text);
  ::close(descriptor);
  return ::rename(temporary_.data(), file_.data()) == 0;
}

void FlightRecorder::write_file(int descriptor, Reason reason, int exit_code,
                                std::string_view text) const {
  SignalText out(descriptor);
  const std::int64_t to_wall = nanoseconds_of(CLOCK_REALTIME) - nanoseconds_of(CLOCK_MONOTONIC);
  const std::uint64_t end = next_.load(std::memory_order_acquire);
  const std::uint64_t first = end > kKept ? end - kKept : 0;
  out << R"({"format":1,"rank":)" << rank_ << R"(,"ranks":)" << ranks_ << R"(,"host":")";
  out.json(host_.data()) << R"(","process":)" << static_cast<std::int64_t>(::getpid())
                         << R"(,"us":)" << nanoseconds_of(CLOCK_REALTIME) / 1000 << R"(,"begun":)"
                         << start_ << R"(,"reason":")" << reason_name(reason) << R"(","exit":)"
                         << exit_code << R"(,"step":)" << step() << R"(,"text":")";
  out.json(text) << "\"}\n";
  std::int64_t written = 0;
  for (std::uint64_t number = first; number < end; ++number) {
    const auto& words = slots_[number % kSlots].words;
    std::array<std::uint64_t, 8> copy{};
    for (std::size_t i = 0; i < copy.size(); ++i)
      copy[i] = words[i].load(std::memory_order_acquire);
    // The event is being written at this moment.
    if (copy[0] != number + 1 || words[0].load(std::memory_order_acquire) != copy[0]) continue;
    const auto event = static_cast<FlightEvent>(copy[4] >> 32 & 0xff);
    const auto field = [&](std::string_view name, std::int64_t value) {
      if (value >= 0) out << ",\"" << name << "\":" << value;
    };
    out << R"({"n":)" << static_cast<std::int64_t>(number) << R"(,"us":)"
        << (static_cast<std::int64_t>(copy[1]) + to_wall) / 1000 << R"(,"event":")"
        << event_name(event) << "\"";
    field("step", static_cast<std::int64_t>(copy[2]));
    field("bucket", static_cast<std::int32_t>(static_cast<std::uint32_t>(copy[4])));
    field("round", static_cast<std::int64_t>(copy[3]));
    if ((copy[4] >> 40 & 0xff) != 0) field("lane", static_cast<std::int64_t>(copy[4] >> 40 & 0xff));
    const auto count = static_cast<std::size_t>(copy[4] >> 48);
    if (count == 0x8000) {
      std::array<char, kText + 1> words_of{};
      std::memcpy(words_of.data(), copy.data() + 5, kText);
      out << R"(,"what":")";
      out.json(words_of.data()) << "\"";
    } else if (count > 0) {
      std::array<std::int32_t, kPeers> peers{};
      std::memcpy(peers.data(), copy.data() + 5, sizeof peers);
      out << R"(,"ranks":[)";
      for (std::size_t i = 0; i < std::min(count, kPeers); ++i)
        out << (i ? "," : "") << static_cast<std::int64_t>(peers[i]);
      out << "]";
      if (count > kPeers) field("of", static_cast<std::int64_t>(count));
    }
    out << "}\n";
    ++written;
  }
  out << R"({"end":)" << written << "}\n";
}

}  // namespace starling
