#pragma once

#include <cstdint>
#include <vector>

#include "comm/algorithms/bucketwise.h"
#include "comm/mixer.h"
#include "comm/mixers/encoded.h"
#include "core/operations/codecs.h"

namespace starling {

/// The keys of algorithms whose exchange may be encoded (`sync.exchange`): block, error_feedback,
/// consensus_step. With feedback a state joins `states`.
Encoding read_encoding(ConfigSection& config, std::vector<KeptState>& states);

/// Elements that share a code's range.
std::int64_t read_block(ConfigSection& config);

/// γ: a mix of c is c + γ([c] - c).
double read_consensus_step(ConfigSection& config);

/// The keys of algorithms that always encode what they send: compressor and block.
struct Compressor {
  Code code = Code::kMinMax8;
  std::int64_t block = 256;
  /// AlgorithmMessages::wire, for fp32 numbers.
  double wire() const {
    constexpr std::int64_t kMany = 1 << 20;
    return static_cast<double>(message_bytes(code, DType::kFloat32, kMany, block)) / (4.0 * kMany);
  }
};
Compressor read_compressor(ConfigSection& config, Code standard = Code::kMinMax8);

/// Base class of algorithms that encode their messages themselves. Their topology has one round.
class EncodedBucketwise : public Bucketwise {
 public:
  EncodedBucketwise(const AlgorithmSite& site, const Compressor& compressor);

 protected:
  /// Memory for what is to be encoded of bucket b. Shared by all buckets.
  Tensor moved(int b) { return moved_.slice(0, Shape{bucket(b).parameters.elements()}); }
  /// Encodes and sends moved(b), on the update stream.
  void send(int b, std::int64_t step);
  /// Waits for the bucket's exchange, if there is one.
  void settle(int b) { Algorithm::settle(tickets_[static_cast<std::size_t>(b)], b); }

  Exchange exchange_;  ///< of every step; of a single rank none
  EncodedMessages messages_;

 private:
  std::vector<Ticket> tickets_;  ///< by bucket
  Tensor moved_;                 ///< of the largest bucket
};

}  // namespace starling
