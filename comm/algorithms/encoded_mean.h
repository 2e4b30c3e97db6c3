#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/compression.h"

namespace starling {

/// Of error feedback, by bucket: what encoding left out of a rank's numbers and of its chunk's
/// mean.
struct Residuals {
  std::vector<Tensor> of_numbers, of_chunks;
  double decay = 1.0;
};

/// A mean over all ranks of one tensor per bucket, by encoded messages, with the same bits on all.
class CodedMean {
 public:
  virtual ~CodedMean() = default;
  /// Sends `numbers`, or their difference from `minus`; the mean will be in `out`, which may be
  /// `numbers`. Collective, in bucket order.
  virtual void start(int bucket, const Tensor& numbers, const Tensor& minus, const Tensor& out,
                     std::int64_t step) = 0;
  using Wait = std::function<void(Ticket, int bucket)>;
  /// After start() of all buckets: starts the second half, if there is one. Collective, in bucket
  /// order.
  virtual void gather(int bucket, std::int64_t step, const Wait& wait) = 0;
  /// After gather() of all buckets: writes the mean to `out`, on the update stream.
  virtual void finish(int bucket, const Wait& wait) = 0;
};

/// By chunks (Bagua's ByteGrad; Gan et
/// al. 2021, arXiv 2107.01499). A bucket of E elements is split into n chunks of ceil(E/n)
/// elements, rounded up to a multiple of 32; the last ones may be shorter or empty. Every rank
/// sends each other rank that rank's chunk, computes the mean of its own chunk in rank order, and
/// sends it to all. Both messages are encoded, and every rank decodes its own as well, so that all
/// have the same bits. `divisor`: n for the mean, 1 for the sum.
/// With error feedback what is encoded is v = numbers + residual, and residual' = decay · (v -
/// decoded).
class EncodedMean final : public CodedMean {
 public:
  EncodedMean(const AlgorithmSite& site, const Compressor& compressor, double divisor,
              Residuals residuals = {});

  void start(int bucket, const Tensor& numbers, const Tensor& minus, const Tensor& out,
             std::int64_t step) override;
  void gather(int bucket, std::int64_t step, const Wait& wait) override;
  void finish(int bucket, const Wait& wait) override;

 private:
  struct State {
    Tensor out;    ///< of start()
    Tensor chunk;  ///< the mean of this rank's chunk
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
  void encode(const Tensor& numbers, const Tensor& minus, const Tensor& residual,
              const Tensor& message);
  void settle(State& state, int bucket, const Wait& wait);

  Backend& backend_;
  Transport& transport_;
  Compressor compressor_;
  double divisor_;
  Residuals residuals_;
  std::vector<State> states_;  ///< by bucket
};

}  // namespace starling
