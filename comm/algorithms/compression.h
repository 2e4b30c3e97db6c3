#pragma once

#include <cstdint>
#include <vector>

#include "comm/algorithm.h"
#include "comm/mixer.h"
#include "core/operations/codecs.h"

namespace starling {

/// The keys of algorithms whose exchange may be encoded (`sync.exchange`): block, error_feedback,
/// consensus_step. With feedback a state joins `states`.
Encoding read_encoding(ConfigSection& config, std::vector<KeptState>& states);

/// γ of an exchange that is encoded.
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
Compressor read_compressor(ConfigSection& config, const char* standard);

}  // namespace starling
