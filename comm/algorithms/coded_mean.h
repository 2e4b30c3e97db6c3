#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/compression.h"
#include "core/operations/sparse.h"

// How algorithms that average by messages of their own encode them: differences of whole buckets,
// and means over all ranks.
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
