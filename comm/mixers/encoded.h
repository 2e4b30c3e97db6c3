#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/mixer.h"
#include "core/operations/codecs.h"

namespace starling {

/// Sends and receives encoded messages, at most one per bucket at a time, and computes their
/// weighted sums. All work is on the update stream.
class EncodedMessages {
 public:
  EncodedMessages(Backend& backend, Transport& transport, Code code, std::int64_t block)
      : backend_(backend), transport_(transport), code_(code), block_(block) {}
  /// Encodes and sends `numbers`, which may change afterwards. The last exchange of this bucket
  /// must have been waited for.
  Ticket send(const Exchange& exchange, const Tensor& numbers, const ExchangeLabel& label);
  /// Encodes `numbers` as bf16 and starts the sum over the group (Exchange::Kind::kGroupSum).
  Ticket sum(const Exchange& exchange, const Tensor& numbers, const Tensor& sum,
             const ExchangeLabel& label);
  /// After the wait: out (+)= own_weight · C(own) + Σ_k weights[k] · C(received k). With a weight
  /// of 0 the own message is not read.
  void add_up(int bucket, double own_weight, const std::vector<double>& weights, const Tensor& out,
              bool accumulate);
  /// The same sum, times `share`, as a Mix for an update that decodes it. Reads the messages until
  /// the next send().
  void mix(int bucket, double own_weight, const std::vector<double>& weights, double share,
           Mix& mix) const;
  /// out += C(received k).
  void add_received(int bucket, std::size_t k, const Tensor& out);

 private:
  struct Messages {
    Tensor own;
    std::vector<Tensor> received;
  };
  Messages& of(int bucket);
  void encode(int bucket, const Tensor& numbers);
  Tensor message_of(const Tensor& numbers) const;

  Backend& backend_;
  Transport& transport_;
  Code code_;
  std::int64_t block_;
  std::vector<Messages> messages_;  ///< by bucket
};

/// Encoded exchanges (core/operations/codecs.h, Code). With C(v) the decoded encoding of v, rank i
/// computes
///     c_i = x_i + γ Σ_j w_j (C(v_j) - C(v_i)),
/// so that the two sides of a pair add and subtract the same numbers, and the mean over ranks does
/// not change, up to rounding. v is x; or, with error feedback (Seide et al. 2014; Tang et al.
/// 2019, DeepSqueeze, arXiv 1907.07346), x + δ, where δ is the error of the last encoding that was
/// used: δ' = v - C(v). In groups and nodes messages go between all pairs of ranks, except with
/// plain bf16: there a group's sum is computed in rank order, in the parameters' type, from decoded
/// numbers; and in a round over nodes (kNodes) only the nodes' means are rounded, by the same
/// formula (comm/transports/sums.h). Ranks of one host send messages as well, so that the bits do
/// not depend on where ranks run. `wire`: MixerKind::wire for fp32.
MixerKind encoded_mixer(Code code, double wire);

}  // namespace starling
