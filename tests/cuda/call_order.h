#pragma once

#include <cstddef>
#include <vector>

#include "tests/fakes/cuda/recorder.h"

// Questions to a record of calls.
namespace starling::tests {

/// Whether call `later`, on its stream, runs after call `earlier`, on its own, by the waits between
/// them alone.
inline bool ordered(const std::vector<cuda::shim::Call>& calls, std::size_t earlier,
                    std::size_t later) {
  using cuda::shim::CallKind;
  if (earlier >= later) return false;
  if (calls[earlier].stream == calls[later].stream) return true;
  for (std::size_t wait = earlier + 1; wait < later; ++wait) {
    if (calls[wait].kind != CallKind::kWait || calls[wait].stream != calls[later].stream) continue;
    for (std::size_t record = earlier + 1; record < wait; ++record) {
      const cuda::shim::Call& call = calls[record];
      if (call.kind == CallKind::kRecord && call.stream == calls[earlier].stream &&
          call.event == calls[wait].event && call.recording == calls[wait].recording) {
        return true;
      }
    }
  }
  return false;
}

/// Places in the record of the calls of which is(call) holds.
template <class Is>
std::vector<std::size_t> places(const std::vector<cuda::shim::Call>& calls, const Is& is) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (is(calls[i])) result.push_back(i);
  }
  return result;
}

}  // namespace starling::tests
