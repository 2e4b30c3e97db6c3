#pragma once

#include <string>
#include <vector>

#include "comm/transport.h"
#include "core/error.h"

namespace starling {

/// "ranks 1, 4".
std::string rank_list(const std::vector<int>& ranks);
/// "the exchange of step 12, bucket 3, round 11 with ranks 1, 4".
std::string describe(const Exchange& exchange, const ExchangeLabel& label);
/// "the sum over all ranks of step 12, bucket 3".
std::string describe_sum(const ExchangeLabel& label);

/// The entry of a ticket that is under way.
template <class Tickets>
auto find_ticket(Tickets& tickets, Ticket ticket, const char* component = "transport") {
  const auto it = tickets.find(ticket);
  require(it != tickets.end(), component, "ticket {} is not under way", ticket);
  return it;
}

/// Adds to such a text how much the device has copied, unless it has copied all that is to be sent.
std::string with_copies(const std::string& what, Flow* flow);

/// Checks the arguments of an exchange: that it has something to do, peers in range and ascending,
/// one receive buffer per neighbour, equal dtypes and sizes, memory of the right device.
void check_exchange(int rank, int size, const Exchange& exchange, const Tensor& send,
                    const std::vector<Tensor>& receive, DeviceType device = DeviceType::kCpu);
void check_sum(const Tensor& in, const Tensor& out, DeviceType device = DeviceType::kCpu);

}  // namespace starling
