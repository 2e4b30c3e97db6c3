#include "comm/transports/checks.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "comm/transports/sums.h"

namespace starling {
namespace {

std::string describe_label(const ExchangeLabel& label) {
  if (label.step < 0) return fmt::format("tensor {} for the mean model", label.bucket);
  if (label.bucket < 0) return fmt::format("the numbers of step {}", label.step);  // metrics
  return fmt::format("step {}, bucket {}", label.step, label.bucket);
}

void check_peers(int rank, int size, const std::vector<int>& peers, bool own) {
  for (std::size_t i = 0; i < peers.size(); ++i) {
    require(peers[i] >= 0 && peers[i] < size, "transport", "rank {} is outside a world of {}",
            peers[i], size);
    require(i == 0 || peers[i - 1] < peers[i], "transport", "the peers of an exchange must ascend");
    require(own || peers[i] != rank, "transport", "rank {} is its own neighbour", rank);
  }
}

const char* wrong_memory(DeviceType device) {
  return device == DeviceType::kCpu ? "this transport moves host memory only"
                                    : "this transport moves a GPU's memory only";
}

/// Checks the parts of a reduce-scatter or an all-gather.
void check_parts(int rank, int size, const Exchange& exchange, const Tensor& send,
                 const Tensor& receive) {
  check_peers(rank, size, exchange.group, true);
  const auto own = std::ranges::find(exchange.group, rank) - exchange.group.begin();
  require(own < std::ssize(exchange.group), "transport", "rank {} is not in its group", rank);
  require(exchange.parts.size() == exchange.group.size() + 1 &&
              std::ranges::is_sorted(exchange.parts) && exchange.parts[0] == 0,
          "transport", "{} parts of {} ranks", exchange.parts.size(), exchange.group.size());
  const auto k = static_cast<std::size_t>(own);
  const bool scatters = exchange.kind == Exchange::Kind::kScatterSum;
  const Tensor &whole = scatters ? send : receive, &part = scatters ? receive : send;
  require(whole.elements() == exchange.parts.back() &&
              part.elements() == exchange.parts[k + 1] - exchange.parts[k] &&
              whole.dtype() == part.dtype(),
          "transport", "a part of {} {} of {} {}", part.elements(), name_of(part.dtype()),
          whole.elements(), name_of(whole.dtype()));
  require(!scatters || send.dtype() == DType::kFloat32 || send.dtype() == DType::kFloat64,
          "transport", "a sum of {}", name_of(send.dtype()));
}

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == 16) return text + fmt::format(", … ({} in all)", ranks.size());
    text += (i ? ", " : "") + std::to_string(ranks[i]);
  }
  return text;
}

std::string describe(const Exchange& exchange, const ExchangeLabel& label) {
  const std::string start =
      fmt::format("the exchange of {}, round {}", describe_label(label), label.round);
  if (exchange.kind != Exchange::Kind::kNeighbours && exchange.kind != Exchange::Kind::kNodes)
    return fmt::format("{} in the group of {}", start, rank_list(exchange.group));
  std::vector<int> peers;
  std::set_union(exchange.send_to.begin(), exchange.send_to.end(), exchange.receive_from.begin(),
                 exchange.receive_from.end(), std::back_inserter(peers));
  if (exchange.kind == Exchange::Kind::kNeighbours)
    return fmt::format("{} with {}", start, rank_list(peers));
  return fmt::format("{} in the node of {} with {} of other nodes", start,
                     rank_list(exchange.group), rank_list(peers));
}

std::string describe_sum(const ExchangeLabel& label) {
  return fmt::format("the sum over all ranks of {}", describe_label(label));
}

std::string timeline_name(const ExchangeLabel& label) {
  if (label.bucket < 0) return "numbers";
  return (label.step < 0 ? "mean " : "bucket ") + std::to_string(label.bucket);
}

std::string through_the_host(const Transport& transport) {
  return "exchanges by " + transport.name() + " pass through the host";
}
std::string Transport::why_not_captured() const { return through_the_host(*this); }

std::string with_copies(const std::string& what, Flow* flow) {
  const std::size_t copied = flow ? flow->ready() : 0;
  if (!flow || copied >= flow->bytes()) return what;
  return fmt::format("{} (the device has copied {} of {} bytes)", what, copied, flow->bytes());
}

void check_exchange(int rank, int size, const Exchange& exchange, const Tensor& send,
                    const std::vector<Tensor>& receive, DeviceType device) {
  require(exchange.kind != Exchange::Kind::kNone, "transport",
          "an exchange of kind none has nothing to start");
  require(receive.size() == exchange.received(), "transport",
          "an exchange that receives {} buffers was given {}", exchange.received(), receive.size());
  require(send.backend().device() == device, "transport", "{}", wrong_memory(device));
  if (!exchange.parts.empty()) return check_parts(rank, size, exchange, send, receive[0]);
  const DType expected =
      exchange.kind == Exchange::Kind::kGroupSum ? sum_type(send.dtype()) : send.dtype();
  // `send` tells the size then
  const bool sends_nothing =
      exchange.kind == Exchange::Kind::kNeighbours && exchange.send_to.empty();
  for (const Tensor& buffer : receive) {
    require(buffer.dtype() == expected && buffer.elements() == send.elements(), "transport",
            "a receive buffer of {} {} for a send of {} {}", buffer.elements(),
            name_of(buffer.dtype()), send.elements(), name_of(send.dtype()));
    require(buffer.raw() != send.raw() || send.elements() == 0 || sends_nothing, "transport",
            "an exchange is out of place");
  }
  check_peers(rank, size, exchange.send_to, false);
  check_peers(rank, size, exchange.receive_from, false);
  if (exchange.kind == Exchange::Kind::kNodes) {
    require(send.dtype() == DType::kFloat32 || send.dtype() == DType::kFloat64, "transport",
            "a mean over nodes of {}", name_of(send.dtype()));
    require(exchange.shares.size() == exchange.receive_from.size(), "transport",
            "{} shares for {} peers", exchange.shares.size(), exchange.receive_from.size());
  }
  if (exchange.kind != Exchange::Kind::kNeighbours) {
    check_peers(rank, size, exchange.group, true);
    require(std::find(exchange.group.begin(), exchange.group.end(), rank) != exchange.group.end(),
            "transport", "rank {} is not in its group", rank);
    require(send.dtype() == DType::kFloat32 || send.dtype() == DType::kFloat64 ||
                send.dtype() == DType::kBFloat16,
            "transport", "a group sum of {}", name_of(send.dtype()));
  }
}

void check_sum(const Tensor& in, const Tensor& out, DeviceType device) {
  require(in.dtype() == out.dtype() && in.elements() == out.elements(), "transport",
          "a sum of {} {} into {} {}", in.elements(), name_of(in.dtype()), out.elements(),
          name_of(out.dtype()));
  require(in.dtype() == DType::kFloat32 || in.dtype() == DType::kFloat64, "transport",
          "a sum of {}", name_of(in.dtype()));
  require(in.backend().device() == device, "transport", "{}", wrong_memory(device));
}

}  // namespace starling
