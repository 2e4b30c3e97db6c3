#pragma once

#include <cstdint>
#include <vector>

#include "comm/algorithms/difference_messages.h"
#include "comm/algorithms/encoded_mean.h"

namespace starling {

/// Each rank sends the largest numbers of every block to all others (SparseLoCo, arXiv 2508.15706).
/// What a rank does not send, and what encoding leaves out, is its residual. All ranks add up the
/// same messages in rank order, so that they have the same bits.
class SparseMean final : public CodedMean {
 public:
  SparseMean(const AlgorithmSite& site, const DifferenceCode& code, Residuals residuals);

  void start(int bucket, const Tensor& numbers, const Tensor& minus, const Tensor& out,
             std::int64_t step) override;
  void gather(int, std::int64_t, const Wait&) override {}
  void finish(int bucket, const Wait& wait) override;

 private:
  struct State {
    Tensor out;
    std::vector<Tensor> messages;  ///< by rank
    Ticket ticket = 0;
  };
  Backend& backend_;
  Transport& transport_;
  DifferenceMessages messages_;
  Residuals residuals_;
  std::vector<State> states_;  ///< by bucket
};

}  // namespace starling
