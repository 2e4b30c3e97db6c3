#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/membership.h"
#include "core/safetensors.h"
#include "core/tensor.h"

// A rank's state as bytes, which another rank fetches and continues from: a length, that many bytes
// of JSON, which say what lies where, and memory as it lies.

namespace starling {

/// Reads the tensors of a state of Trainer::handover_state() that ranks share. Call when no rank is
/// in a step of the previous world any more.
void load_deferred_tensors(SafetensorsFile& state);
/// Memory for a copy of such a state, on a CPU. New memory takes longer to get than to fill, so
/// another thread gets it during training.
using StateMemory = std::vector<Tensor>;
std::future<StateMemory> memory_for(const SafetensorsFile& state, Backend& backend);
/// A copy of such a state, in that memory, for those who wait to join.
OfferedState offered_state(SafetensorsFile state, StateMemory memory);

/// The bytes of a state that does not change any more.
OfferedState state_bytes(std::shared_ptr<const SafetensorsFile> state);

/// Reads state_bytes() of rank `from`, which arrive in order, into memory of `host`. Error(kLost)
/// for what is no such state.
class StateReader {
 public:
  StateReader(int from, Backend& host) : from_(from), host_(&host) {}
  /// The next piece of `bytes` in all.
  void add(std::uint64_t bytes, std::string_view piece);
  bool complete() const { return state_ && remaining_ == 0; }
  /// Clears what belongs to the sender alone.
  SafetensorsFile take();

 private:
  int from_;
  Backend* host_;
  std::uint64_t received_ = 0, remaining_ = 1;
  std::string header_;  ///< the header's length, and the header
  std::optional<SafetensorsFile> state_;
  std::deque<std::span<std::byte>> destinations_;  ///< of what is not complete
  std::size_t filled_ = 0;                         ///< bytes of the first one
};

/// Sets the tensors to 0 whose names `which` takes.
void clear_tensors(SafetensorsFile& state, bool (*which)(const std::string&));

}  // namespace starling
