#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/backend.h"

namespace starling {

/// The values that a step may turn out to have, of which the device chooses when it comes to the launch: so the host need not know yet how
/// the step before ended. The device remembers the place of its choice; the next one is table[2·place + flag], with the flag that the work
/// before has left in control[1] (0, or anything else: 1).
struct ValueChoices {
  static constexpr std::size_t kMost = 16;
  std::span<const StepValues> candidates;  ///< kMost at most
  std::span<const std::int32_t> table;     ///< 2·kMost
  Tensor control;                          ///< fp64 [2]
};

/// What a DeviceGraph may be as well.
class ChoosingGraph {
 public:
  /// As DeviceGraph::launch().
  virtual void launch_chosen(const ValueChoices& choices) = 0;

 protected:
  ~ChoosingGraph() = default;
};

}  // namespace starling
