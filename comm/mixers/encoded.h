#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/mixer.h"
#include "core/operations/codecs.h"

namespace starling {

/// Messages of encoded numbers, one a bucket on its way at a time: what is sent, what came, and
/// their weighted sums. All work is on the update stream, behind the update that made the numbers.
class EncodedMessages {
 public:
  EncodedMessages(Backend& backend, Transport& transport, Code code, std::int64_t block)
      : backend_(backend), transport_(transport), code_(code), block_(block) {}
  /// Encodes `numbers`, which may change afterwards, and sends them. Messages of the last send()
  /// have been waited for.
  Ticket send(const Exchange& exchange, const Tensor& numbers, const ExchangeLabel& label);
  /// Encodes `numbers` as bf16 and starts the sum of all members' (Exchange::Kind::kGroupSum).
  Ticket sum(const Exchange& exchange, const Tensor& numbers, const Tensor& sum,
             const ExchangeLabel& label);
  /// Adds up after the wait: out = own_weight · C(own) + Σ_k weights[k] · C(received k), with
  /// `accumulate` added to out. A weight of 0 leaves own out.
  void add_up(int bucket, double own_weight, const std::vector<double>& weights, const Tensor& out,
              bool accumulate);
  /// The sum as a mix, for a backend whose update decodes as it goes: the sum's part is `share`.
  /// The messages are read until the next send().
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

/// Exchanges whose numbers travel encoded (core/operations/codecs.h, Code). With C(v) what is
/// decoded from v, a rank's row becomes
///     c_i = x_i + γ Σ_j w_j (C(v_j) - C(v_i)),
/// so both sides of a pair add and subtract the same numbers, and the mean over ranks stays what it
/// was, to rounding. v is x; or, with error feedback (Seide et al. 2014; Tang et al. 2019,
/// DeepSqueeze, arXiv 1907.07346), x + δ, where δ is what encoding left out so far: δ' = v - C(v),
/// when the exchange is used. Groups and nodes exchange messages between any two ranks. With plain
/// bf16 alone they add up on the way instead: a group's sum is that of the members' decoded
/// numbers, made in rank order in the parameters' type; in a round over nodes (kNodes) only the
/// means that nodes exchange are rounded, by the same rule (comm/transports/sums.h). The
/// transport carries all of it, also between ranks of one host: the same bits wherever the ranks
/// are. `wire`: MixerKind::wire of fp32 numbers.
MixerKind encoded_mixer(Code code, double wire);

}  // namespace starling
