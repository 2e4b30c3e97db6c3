#pragma once

#include <cstdint>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/encoded_mean.h"
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

/// Each rank sends the largest numbers of every block to all others (SparseLoCo, arXiv 2508.15706).
/// What a rank does not send, and what encoding leaves out, is its residual. All ranks add up the
/// same messages in rank order, so that they have the same bits.
class SparseMean final : public CodedMean {
 public:
  SparseMean(const AlgorithmSite& site, const SparseSettings& settings, Residuals residuals);

  void start(int bucket, const Tensor& numbers, const Tensor& minus, const Tensor& out,
             std::int64_t step) override;
  void gather(int, std::int64_t, const Wait&) override {}
  void finish(int bucket, const Wait& wait) override;

 private:
  struct State {
    SparseLayout layout;
    Tensor out;
    std::vector<Tensor> messages;  ///< by rank
    Ticket ticket = 0;
  };
  Backend& backend_;
  Transport& transport_;
  SparseSettings settings_;
  Residuals residuals_;
  std::vector<State> states_;  ///< by bucket
};

}  // namespace starling
