#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "plain_run.h"

// Messages that are encoded, and what trains by them.
namespace starling::test {

/// How a message is encoded (algorithms.md, section 5).
struct PlainCodec {
  std::string type = "none";  ///< none, bf16, int8, int4 or minmax8
  std::size_t block = 256;    ///< of all but bf16, in elements; 0: the whole message
};

/// Numbers that a receiver makes of a message, and its sender too: encoded and decoded in fp32.
std::vector<float> decoded(const PlainCodec& codec, const std::vector<float>& message);
/// Decodes fp64 numbers: rounded to fp32 on their way in, whatever the codec.
std::vector<double> decoded(const PlainCodec& codec, const std::vector<double>& message);

/// Every bucket of every rank's v, as a receiver decodes it.
Vectors decoded(const PlainRun& run, const PlainCodec& codec, const Vectors& v);

/// Exchanges of gossip and qgm, as `sync.exchange` has them travel (algorithms.md, section 5).
class PlainExchange {
 public:
  PlainExchange(const PlainRun& run, const std::string& exchange);
  /// The same without error feedback.
  PlainExchange without_feedback() const;
  /// [v]_k, whose matrix is `round`.
  Vectors mixed(const PlainRun& run, const Vectors& v, const Round& round);

 private:
  bool exact_;
  PlainCodec codec_;
  bool feedback_;
  double gamma_;
  Vectors residual_;  // δ
};

/// The mean by bytegrad's way: by chunks, one for each rank, compressed on the way to it and back.
class ChunkedMean {
 public:
  /// `decay`: part of what encoding leaves out that goes into the next; 0: without feedback.
  ChunkedMean(const PlainRun& run, PlainCodec codec, double decay)
      : run_(run),
        codec_(std::move(codec)),
        decay_(decay),
        residuals_(run.zeros()),
        mean_residual_(run.size(), 0.0) {}
  /// Of the buckets that `takes` names, or of all.
  Vectors operator()(const Vectors& v, const std::function<bool(std::size_t)>& takes = {});

 private:
  void mean_of_chunk(std::size_t begin, std::size_t end, const Vectors& sent, Vectors& heard,
                     Vector& residual, Vector& mean) const;

  const PlainRun& run_;
  PlainCodec codec_;
  double decay_;
  Vectors residuals_;     // of what each rank sends
  Vector mean_residual_;  // of each element's mean, on the rank whose chunk it is in
};

/// The mean of messages that are gathered: by the run's exchange, of sparse the largest numbers of
/// every block alone (algorithms.md, section 11).
class GatheredMean {
 public:
  GatheredMean(const PlainRun& run, double decay)
      : run_(run), decay_(decay), residuals_(run.zeros()) {}
  /// Of the buckets that `takes` names. `weights`: by rank; 0: it takes no part. Empty: 1 each.
  Vectors operator()(const Vectors& v, const std::function<bool(std::size_t)>& takes,
                     Vector weights = {});

 private:
  /// Of the largest numbers of a block their code, and `chosen`; 0 of the others.
  void through_largest(const Vector& sent, std::size_t begin, std::size_t end, Vector& c,
                       Vector& chosen) const;

  const PlainRun& run_;
  double decay_;
  Vectors residuals_;
};

/// Trains choco, low_precision, bytegrad and qadam (algorithms.md, section 5). False: the run's
/// algorithm is none of them.
bool train_compressed(PlainRun& run);

}  // namespace starling::test
