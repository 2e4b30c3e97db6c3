#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace starling {

/// A rank of an exchange that takes too long, and what is known about it.
struct AwaitedRank {
  int rank = 0;
  double seconds_ago = -1.0;  ///< since its last message; negative: never heard of
  std::string doing;          ///< what it last said that it started; may be empty
  bool missing = true;        ///< false: it has done its part
  std::string host = {};      ///< empty: this rank's own
};

/// "ranks 1, 4".
std::string rank_list(const std::vector<int>& ranks);
/// "the exchange of step 12, bucket 3, round 11 with ranks 1, 4".
std::string describe(const Exchange& exchange, const ExchangeLabel& label);
/// "the sum over all ranks of step 12, bucket 3".
std::string describe_sum(const ExchangeLabel& label);

/// Such a text `what` with how far the device is, where it has not copied all that is to be sent:
/// then that is what everybody waits for.
std::string with_copies(const std::string& what, Flow* flow);

/// Throws Error(kLost): a wait passed its limit.
[[noreturn]] void fail_wait(int rank, const std::string& what, const ExchangeLabel& label,
                            double limit_seconds, std::vector<AwaitedRank> awaited);

/// Checks what every transport asks of its arguments: peers in range and ascending, one receive
/// buffer per neighbour, same dtype and size, memory of the device that it is for.
void check_exchange(int rank, int size, const Exchange& exchange, const Tensor& send,
                    const std::vector<Tensor>& receive, DeviceType device = DeviceType::kCpu);
void check_sum(const Tensor& in, const Tensor& out, DeviceType device = DeviceType::kCpu);

}  // namespace starling
