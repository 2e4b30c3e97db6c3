#include "tests/fakes/cuda/capture.h"

#include <algorithm>
#include <utility>

namespace starling::cuda::shim {

void Capture::add(StreamHandle stream, std::function<void()> work) {
  Stream& s = streams_.at(stream);
  ++s.clock[stream];
  if (spoiled_.empty()) work_.push_back(std::move(work));
}

void Capture::wait(StreamHandle stream, const std::string& name, const Clock& recorded) {
  Stream& s = streams_[stream];
  s.name = name;
  for (const auto& [other, time] : recorded) s.clock[other] = std::max(s.clock[other], time);
  ++s.clock[stream];  // a stream that only waited must be joined too
}

void Capture::spoil(const std::string& why) {
  if (spoiled_.empty()) spoiled_ = why;
  work_.clear();
}

std::string Capture::unjoined() const {
  const Clock& known = streams_.at(origin_).clock;
  std::string names;
  for (const auto& [stream, s] : streams_) {
    if (stream == origin_) continue;
    const auto it = known.find(stream);
    if (it != known.end() && it->second >= s.clock.at(stream)) continue;
    names += (names.empty() ? "" : ", ") + s.name;
  }
  return names;
}

std::vector<StreamHandle> Capture::streams() const {
  std::vector<StreamHandle> all;
  for (const auto& [stream, s] : streams_) all.push_back(stream);
  return all;
}

}  // namespace starling::cuda::shim
