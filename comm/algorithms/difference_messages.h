#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/compression.h"
#include "core/operations/sparse.h"

namespace starling {

/// The keys of a sparse exchange.
struct SparseSettings {
  double share = 1.0 / 16.0;  ///< of a block's numbers that is sent
  std::int64_t block = 4096;
  int value_bits = 2;
  bool of_all = false;  ///< means over all ranks, not over an entry's senders
  /// Bytes of a message per byte of fp32 numbers in whole blocks.
  double wire() const {
    const double bits =
        share * ((block > 4096 ? 16.0 : 12.0) + value_bits) + 32.0 / static_cast<double>(block);
    return bits / 32.0;
  }
};

/// How differences travel (`sync.exchange`).
struct DifferenceCode {
  Compressor compressor = {.code = Code::kNone};
  std::optional<SparseSettings> sparse = std::nullopt;
  double error_decay = 0.0;  ///< 0: without error feedback
  bool encodes() const { return compressor.code != Code::kNone || sparse; }
  /// Tells codes of one length apart where a message is announced; code_name() has its words.
  int number() const {
    return sparse ? kSparse + sparse->value_bits : static_cast<int>(compressor.code);
  }
  static constexpr int kSparse = 16;
};
std::string code_name(int number);

/// Messages that hold a whole bucket's difference, and their mean. On the current stream.
class DifferenceMessages {
 public:
  DifferenceMessages(const AlgorithmSite& site, DifferenceCode code);
  std::int64_t bytes(int bucket) const;
  /// message = C(v), v = numbers - minus + residual; residual' = error_decay · (v - C(v)).
  void encode(int bucket, const Tensor& numbers, const Tensor& minus, const Tensor& residual,
              const Tensor& message);
  /// out = Σ w·C / Σ w, in the messages' order; sparse: of an entry over those that sent it, or
  /// over all. A weight is a number that fp32 holds.
  void mean(int bucket, const std::vector<Tensor>& messages, const std::vector<double>& weights,
            const Tensor& out);

 private:
  Backend& backend_;
  std::vector<Bucket>& buckets_;
  DifferenceCode code_;
  std::vector<SparseLayout> layouts_;  ///< by bucket; empty: not sparse
};

}  // namespace starling
