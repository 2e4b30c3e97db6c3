#pragma once

#include <string>

#include "plain_codecs.h"
#include "plain_run.h"

namespace starling::test {

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

}  // namespace starling::test
