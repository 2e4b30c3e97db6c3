#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/compression.h"

namespace starling {

/// The mean over all ranks of one tensor per bucket, by encoded messages (Bagua's ByteGrad; Gan et
/// al. 2021, arXiv 2107.01499). A bucket of E elements is split into n chunks of ceil(E/n)
/// elements, rounded up to a multiple of 32; the last ones may be shorter or empty. Every rank
/// sends each other rank that rank's chunk, computes the mean of its own chunk in rank order, and
/// sends it to all. Both messages are encoded, and every rank decodes its own as well, so that all
/// have the same bits. `divisor`: n for the mean, 1 for the sum.
class EncodedMean {
 public:
  /// With error feedback, `residuals` and `chunk_residuals` are the encoding errors of a rank's
  /// numbers and of its chunk's mean, by bucket.
  EncodedMean(const AlgorithmSite& site, const Compressor& compressor, double divisor,
              std::vector<Tensor> residuals = {}, std::vector<Tensor> chunk_residuals = {});

  /// Sends `numbers`, which must not change until finish(). Collective, in bucket order.
  void start(int bucket, const Tensor& numbers, std::int64_t step);
  using Wait = std::function<void(Ticket, int bucket)>;
  /// After start() of all buckets: sends the chunk's mean. Collective, in bucket order.
  void gather(int bucket, std::int64_t step, const Wait& wait);
  /// After gather() of all buckets: writes the mean to `numbers`, on the update stream.
  void finish(int bucket, const Wait& wait);

 private:
  struct State {
    /// `numbers`: of start(). `chunk`: the mean of this rank's chunk, then its decoded encoding
    Tensor numbers, chunk;
    /// By rank: the message with that rank's chunk, and that rank's message with this rank's chunk
    std::vector<Tensor> sent, received;
    std::vector<Tensor> means;  ///< messages of the chunks' means, by rank
    std::vector<Ticket> tickets;
  };
  std::int64_t first(const Tensor& numbers, int chunk) const;
  std::int64_t size(const Tensor& numbers, int chunk) const;
  Tensor chunk_of(const Tensor& numbers, int chunk) const;
  std::int64_t bytes(DType dtype, std::int64_t elements) const;
  /// The leading part of a message that `numbers` fill.
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
