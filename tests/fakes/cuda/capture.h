#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda::shim {

/// A fake graph: what it does, in the order of the capture.
struct FakeGraph {
  std::vector<std::function<void()>> work;
};

/// A capture under way: the work, and how far each stream that takes part is known to the others,
/// so that the end can tell which was not joined.
class Capture {
 public:
  using Clock = std::map<StreamHandle, std::uint64_t>;

  Capture(StreamHandle origin, const std::string& name) : origin_(origin) {
    streams_[origin].name = name;
  }

  StreamHandle origin() const { return origin_; }
  void add(StreamHandle stream, std::function<void()> work) {
    ++streams_.at(stream).clock[stream];
    if (spoiled_.empty()) work_.push_back(std::move(work));
  }
  Clock record(StreamHandle stream) const { return streams_.at(stream).clock; }
  /// The stream joins the capture where it is not in it yet.
  void wait(StreamHandle stream, const std::string& name, const Clock& recorded) {
    Stream& s = streams_[stream];
    s.name = name;
    for (const auto& [other, time] : recorded) s.clock[other] = std::max(s.clock[other], time);
    ++s.clock[stream];  // a stream that only waited must be joined too
  }
  /// Spoils the capture: from now on nothing is taken, and the end will say this. The first reason
  /// counts.
  void spoil(const std::string& why) {
    if (spoiled_.empty()) spoiled_ = why;
    work_.clear();
  }
  const std::string& spoiled() const { return spoiled_; }
  /// Streams that the origin has not waited for.
  std::string unjoined() const {
    const Clock& known = streams_.at(origin_).clock;
    std::string names;
    for (const auto& [stream, s] : streams_) {
      const auto it = known.find(stream);
      if (stream != origin_ && (it == known.end() || it->second < s.clock.at(stream)))
        names += (names.empty() ? "" : ", ") + s.name;
    }
    return names;
  }
  std::vector<StreamHandle> streams() const {
    std::vector<StreamHandle> all;
    for (const auto& [stream, s] : streams_) all.push_back(stream);
    return all;
  }
  std::vector<std::function<void()>> take_work() { return std::move(work_); }

  bool over = false;

 private:
  struct Stream {
    std::string name;
    Clock clock;
  };
  StreamHandle origin_;
  std::map<StreamHandle, Stream> streams_;
  std::vector<std::function<void()>> work_;
  std::string spoiled_;
};

}  // namespace starling::cuda::shim
