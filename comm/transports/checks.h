#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace starling {

/// "ranks 1, 4".
std::string rank_list(const std::vector<int>& ranks);
/// "the exchange of step 12, bucket 3, round 11 with ranks 1, 4".
std::string describe(const Exchange& exchange, const ExchangeLabel& label);
/// "the sum over all ranks of step 12, bucket 3".
std::string describe_sum(const ExchangeLabel& label);

/// Such a text `what` with how far the device is, where it has not copied all that is to be sent:
/// then that is what everybody waits for.
std::string with_copies(const std::string& what, Flow* flow);

/// Checks what every transport asks of its arguments: peers in range and ascending, one receive
/// buffer per neighbour, same dtype and size, memory of the device that it is for.
void check_exchange(int rank, int size, const Exchange& exchange, const Tensor& send,
                    const std::vector<Tensor>& receive, DeviceType device = DeviceType::kCpu);
void check_sum(const Tensor& in, const Tensor& out, DeviceType device = DeviceType::kCpu);

}  // namespace starling
