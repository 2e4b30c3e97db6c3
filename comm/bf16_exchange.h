#pragma once

#include <cstdint>
#include <vector>

#include "comm/bucket.h"
#include "comm/transport.h"
#include "core/backend.h"

namespace starling {

/// Exchanges whose numbers travel as bf16. With C(x) the rounded copy of x, a rank's row of the mixing matrix becomes
///     c_i = x_i + Σ_j w_j (C(x_j) - C(x_i)),
/// so both sides of a pair add and subtract the same decoded numbers and the mean over ranks stays what it was, to rounding. A rank's own
/// parameters keep their precision. A group's sum is that of the members' decoded numbers, made in the parameters' own type in rank order.
/// The transport carries all of it, also between ranks of one host: the same bits wherever the ranks are. In a round over nodes (kNodes)
/// only the means that nodes exchange are rounded, by the same rule (comm/node_mix.h); inside a node numbers keep their precision.
class Bf16Exchange {
 public:
  /// Both outlive it.
  Bf16Exchange(Backend& backend, Transport& transport);

  /// Encodes the bucket's parameters and starts the exchange: behind the updates issued so far. Ticket 0 for a round of kind kNone. The
  /// bucket's last exchange must have been mixed or dropped.
  Ticket start(const Exchange& exchange, const Bucket& bucket, const ExchangeLabel& label);

  /// After the wait for the ticket: what the update mixes, c = self_weight·x + Σ weights·terms. The terms are valid for the next update
  /// of this bucket, and overwritten by the next call.
  struct Terms {
    double self_weight = 1.0;
    std::vector<Tensor> received;
    std::vector<double> weights;
  };
  Terms decode(const Exchange& exchange, const ExchangeLabel& label);

 private:
  struct Encoded {
    Tensor own;                   ///< bf16: what was sent
    std::vector<Tensor> arrived;  ///< bf16, one per neighbour
    Tensor sum;                   ///< of a group, or what nodes have mixed, in the parameters' type
  };
  /// The k-th decoded tensor, large enough for any bucket so far, of the shape of `like`.
  Tensor scratch(std::size_t k, const Tensor& encoded);

  Backend& backend_;
  Transport& transport_;
  DType dtype_ = DType::kFloat32;
  std::vector<Encoded> buckets_;
  std::vector<Tensor> scratch_;  ///< updates are issued in order, so all buckets share it
};

}  // namespace starling
