#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "plain_codecs.h"
#include "plain_run.h"

namespace starling::test {

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
