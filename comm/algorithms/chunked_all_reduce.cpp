#include "comm/algorithms/bucketwise.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/coded_mean.h"
#include "comm/algorithms/compression.h"

namespace starling {
namespace {

/// All-reduce by chunks: each rank adds up its own chunk of a bucket's gradients, and sends the
/// result to all. A bucket's chunks are sent as soon as its last gradient is ready, or with `delay`
/// after the pass; their sums follow when the backward pass is done. Encoded it is ByteGrad (Bagua;
/// Gan et al. 2021, arXiv 2107.01499). Every rank gets the same bits.
class ChunkedAllReduce final : public Bucketwise {
 public:
  ChunkedAllReduce(const AlgorithmSite& site, const Compressor& compressor, double divisor,
                   double share, bool delay)
      : Bucketwise(site, share),
        mean_(site, compressor, divisor),
        delay_(delay),
        spreads_(compressor.code != Code::kNone && site.check_overflow &&
                 site.transport.size() > 1) {
    site.transport.prepare({});
  }

  bool updates_at_once() const override { return ranks() == 1 && Bucketwise::updates_at_once(); }

 protected:
  void start_step() override {
    // A block that overflowed was decoded as NaN, into the padding between parameters too, which no
    // gradient writes over.
    for (const Bucket& bucket : site_.buckets) {
      if (spreads_) site_.backend.fill(bucket.gradients, 0.0);
    }
  }
  void gradient_ready(int b) override {
    if (!delay_) start(b);
  }
  void have_gradients() override {
    if (ranks() == 1) return;
    const auto waiting = [this](Ticket ticket, int bucket) { wait(ticket, bucket); };
    for (int b = 0; delay_ && b < buckets(); ++b) start(b);
    for (int b = 0; b < buckets(); ++b) mean_.gather(b, info_.step, waiting);
    for (int b = 0; b < buckets(); ++b) mean_.finish(b, waiting);
    updater_.join();  // gradients are read on the compute stream
  }
  void update(int b) override { updater_.update(b, info_); }

 private:
  void start(int b) {
    if (ranks() == 1) return;
    const Tensor& gradients = bucket(b).gradients;
    on_update_stream(site_.backend, [&] { mean_.start(b, gradients, {}, gradients, info_.step); });
  }

  EncodedMean mean_;
  bool delay_;
  bool spreads_;  ///< what is no number goes from an element to all of its block
};

}  // namespace

std::unique_ptr<Algorithm> make_scatter_gather(const AlgorithmSite& site, bool average,
                                               bool delay) {
  return std::make_unique<ChunkedAllReduce>(site, Compressor{.code = Code::kNone}, 1.0,
                                            average ? 1.0 / site.transport.size() : 1.0, delay);
}

AlgorithmPlan plan_bytegrad(ConfigSection& config) {
  const Compressor compressor = read_compressor(config);
  return {.title = "ByteGrad",
          .scratch = 1,
          .messages = {.wire = compressor.wire()},
          .steps = {.period = 1},
          .equality = {.mean_gradients_before = AlgorithmEquality::kAlways},
          .cost = {.exchanges = {{.what = PlannedExchange::kGradientChunks}},
                   .disagreement = [](double) { return 0.0; }},
          .make = [=](const AlgorithmSite& site) {
            return std::make_unique<ChunkedAllReduce>(site, compressor, site.transport.size(), 1.0,
                                                      false);
          }};
}

}  // namespace starling
