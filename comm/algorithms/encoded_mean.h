#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/compression.h"

namespace starling {

/// The mean over all ranks of a tensor a bucket, by encoded messages (Bagua's ByteGrad; Gan et al.
/// 2021, arXiv 2107.01499). A bucket of E elements is n chunks of ceil(E/n) elements, rounded up to
/// 32: the last ones may be shorter, or empty. Every rank sends each other its chunk, takes the
/// mean of its own in rank order, and sends that to all; both ways are encoded, and every rank
/// decodes its own too, so all get the same bits. `divisor`: n for the mean, 1 for the sum.
class EncodedMean {
 public:
  /// Makes the mean for these buckets. With feedback, `residuals` and `chunk_residuals` hold by
  /// bucket what encoding left out of a rank's numbers, and of its chunk's mean.
  EncodedMean(const AlgorithmSite& site, const Compressor& compressor, double divisor,
              std::vector<Tensor> residuals = {}, std::vector<Tensor> chunk_residuals = {});

  /// Collective, in bucket order: starts to send `numbers`, which do not change until finish().
  void start(int bucket, const Tensor& numbers, std::int64_t step);
  using Wait = std::function<void(Ticket, int bucket)>;
  /// Sends the chunk's mean to all, after all of a step's start(). Collective, in bucket order.
  void gather(int bucket, std::int64_t step, const Wait& wait);
  /// Makes `numbers` the mean, after all of a step's gather(). On the update stream.
  void finish(int bucket, const Wait& wait);

 private:
  struct State {
    /// `numbers`: given to start(). `chunk`: this rank's, the mean, then what was decoded
    Tensor numbers, chunk;
    /// Messages by rank: of the rank's chunk, and of this rank's by that rank
    std::vector<Tensor> sent, received;
    std::vector<Tensor> means;  ///< messages of the chunks' means, by rank
    std::vector<Ticket> tickets;
  };
  std::int64_t first(const Tensor& numbers, int chunk) const;
  std::int64_t size(const Tensor& numbers, int chunk) const;
  Tensor chunk_of(const Tensor& numbers, int chunk) const;
  std::int64_t bytes(DType dtype, std::int64_t elements) const;
  /// The part of a message that these numbers fill.
  Tensor part(const Tensor& message, const Tensor& numbers) const;
  EncodedTerms terms(std::vector<double> weights) const {
    return {.weights = std::move(weights), .code = compressor_.code, .block = compressor_.block};
  }
  void encode(const Tensor& numbers, const Tensor& message);
  void decode(const Tensor& message, const Tensor& out, double weight, bool accumulate);
  void settle(State& state, int bucket, const Wait& wait);

  Backend& backend_;
  Transport& transport_;
  Compressor compressor_;
  double divisor_;
  std::vector<Tensor> residuals_, chunk_residuals_;
  std::vector<State> states_;  ///< by bucket
};

}  // namespace starling
